package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func roundTrip(bootstrap, prefix string, factor int16) {
	topic, group := prefix+"-topic", prefix+"-group"
	client, err := kgo.NewClient(brokers(bootstrap, kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)

	step("create topics", func(ctx context.Context) error {
		value := "86400000"
		created, err := admin.CreateTopic(ctx, 3, factor, map[string]*string{"retention.ms": &value}, topic)
		if err != nil {
			return err
		}
		if created.NumPartitions != 3 || created.ID == (kadm.TopicID{}) {
			return fmt.Errorf("got %+v", created)
		}
		_, err = admin.CreateTopic(ctx, 3, factor, nil, topic)
		return expect(err, kerr.TopicAlreadyExists)
	})
	step("add partitions", func(ctx context.Context) error {
		updated, err := admin.UpdatePartitions(ctx, 4, topic)
		if err != nil {
			return err
		}
		return updated.Error()
	})
	step("describe", func(ctx context.Context) error {
		brokers, err := admin.BrokerMetadata(ctx)
		if err != nil || len(brokers.Brokers) == 0 {
			return fmt.Errorf("no brokers: %v", err)
		}
		err = everywhere(ctx, func() error {
			topics, err := admin.ListTopics(ctx, topic)
			if err != nil {
				return err
			}
			if n := len(topics[topic].Partitions); n != 4 {
				return fmt.Errorf("%d partitions", n)
			}
			for _, partition := range topics[topic].Partitions {
				if len(partition.Replicas) != int(factor) {
					return fmt.Errorf("replicas %v", partition.Replicas)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return err
		}
		for _, entry := range configs[0].Configs {
			if entry.Key == "retention.ms" && entry.MaybeValue() == "86400000" {
				return nil
			}
		}
		return errors.New("retention.ms isn't what was set")
	})
	step("produce", func(ctx context.Context) error {
		for i := 0; i < 1000; i++ {
			client.Produce(ctx, &kgo.Record{Key: []byte(fmt.Sprint("key-", i)), Value: []byte(fmt.Sprint("value-", i))}, nil)
		}
		return client.Flush(ctx)
	})
	step("consume by group, commit, resume", func(ctx context.Context) error {
		if n, err := consume(ctx, bootstrap, group, topic, 1000); err != nil || n != 1000 {
			return fmt.Errorf("%d records: %v", n, err)
		}
		for i := 0; i < 10; i++ {
			client.Produce(ctx, &kgo.Record{Value: []byte("more")}, nil)
		}
		if err := client.Flush(ctx); err != nil {
			return err
		}
		if n, err := consume(ctx, bootstrap, group, topic, 10); err != nil || n != 10 {
			return fmt.Errorf("after resuming %d records: %v", n, err)
		}
		return nil
	})
	step("two members share", func(ctx context.Context) error {
		share := func() (*kgo.Client, error) {
			return kgo.NewClient(brokers(bootstrap, kgo.ConsumerGroup(group+"-two"), kgo.ConsumeTopics(topic),
				kgo.HeartbeatInterval(300*time.Millisecond), kgo.Balancers(kgo.CooperativeStickyBalancer()))...)
		}
		first, err := share()
		if err != nil {
			return err
		}
		defer first.Close()
		second, err := share()
		if err != nil {
			return err
		}
		defer second.Close()
		for ctx.Err() == nil {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			first.PollFetches(short)
			second.PollFetches(short)
			cancel()
			described, err := admin.DescribeGroups(ctx, group+"-two")
			if err != nil {
				return err
			}
			members := described[group+"-two"].Members
			if described[group+"-two"].State != "Stable" || len(members) != 2 {
				continue
			}
			all, shared := 0, true
			for _, member := range members {
				if assigned, ok := member.Assigned.AsConsumer(); ok && len(assigned.Topics) == 1 {
					all += len(assigned.Topics[0].Partitions)
				} else {
					shared = false
				}
			}
			if shared && all == 4 {
				return nil
			}
		}
		return ctx.Err()
	})
	step("offsets and lag", func(ctx context.Context) error {
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		total := int64(0)
		ends.Each(func(offset kadm.ListedOffset) { total += offset.Offset })
		if total != 1010 {
			return fmt.Errorf("end offsets add up to %d", total)
		}
		after, err := admin.ListOffsetsAfterMilli(ctx, time.Now().Add(-time.Hour).UnixMilli(), topic)
		if err != nil || after.Error() != nil {
			return fmt.Errorf("%v %v", err, after.Error())
		}
		lags, err := admin.Lag(ctx, group)
		if err != nil || lags.Error() != nil {
			return fmt.Errorf("%v %v", err, lags.Error())
		}
		if lag := lags[group].Lag.Total(); lag != 0 {
			return fmt.Errorf("a lag of %d", lag)
		}
		return nil
	})
	step("delete records", func(ctx context.Context) error {
		var offsets kadm.Offsets = make(map[string]map[int32]kadm.Offset)
		offsets.AddOffset(topic, 0, 5, -1)
		deleted, err := admin.DeleteRecords(ctx, offsets)
		if err != nil {
			return err
		}
		return deleted.Error()
	})
	step("delete group and topic", func(ctx context.Context) error {
		if _, err := admin.DeleteGroup(ctx, group); err != nil {
			return err
		}
		_, err := admin.DeleteTopic(ctx, topic)
		return err
	})
}

// Waits until a check succeeds ten times in a row. Each time another broker may answer, and a change that one broker has
// acknowledged is visible on the other brokers only a moment later, as with Apache Kafka. Gives up after 20 s.
func everywhere(ctx context.Context, check func() error) error {
	deadline := time.Now().Add(20 * time.Second)
	for held := 0; held < 10; {
		err := check()
		if err == nil {
			held++
			continue
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		held = 0
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func consume(ctx context.Context, bootstrap, group, topic string, wanted int) (int, error) {
	client, err := kgo.NewClient(brokers(bootstrap, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	seen := 0
	for seen < wanted {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return seen, err
		}
		seen += fetches.NumRecords()
	}
	return seen, client.CommitUncommittedOffsets(ctx)
}

func expect(err, wanted error) error {
	if errors.Is(err, wanted) {
		return nil
	}
	return fmt.Errorf("expected %v, got %v", wanted, err)
}
