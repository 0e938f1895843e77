package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	transactions = 9
	perEach      = 60
)

// Transactions: commits and aborts, a group's offsets in transactions, fencing.
func transactional(bootstrap, prefix string, factor int16) {
	client, err := kgo.NewClient(brokers(bootstrap)...)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	create := func(ctx context.Context, name string) (string, error) {
		topic := prefix + "-" + name
		_, err := admin.CreateTopic(ctx, 3, factor, nil, topic)
		return topic, err
	}

	step("readers of committed records see whole transactions only", func(ctx context.Context) error {
		topic, err := create(ctx, "ends")
		if err != nil {
			return err
		}
		producer, err := kgo.NewClient(brokers(bootstrap, kgo.TransactionalID(prefix+"-ends"), kgo.DefaultProduceTopic(topic))...)
		if err != nil {
			return err
		}
		defer producer.Close()
		wanted := map[string]bool{}
		for number := 0; number < transactions; number++ {
			if err := producer.BeginTransaction(); err != nil {
				return err
			}
			ends := kgo.TransactionEndTry(number%3 != 1)
			for i := 0; i < perEach; i++ {
				value := fmt.Sprintf("%d-%d", number, i)
				if bool(ends) {
					wanted[value] = true
				}
				producer.Produce(ctx, kgo.StringRecord(value), nil)
			}
			if err := producer.Flush(ctx); err != nil {
				return err
			}
			if err := producer.EndTransaction(ctx, ends); err != nil {
				return err
			}
		}
		committed, err := readAll(ctx, bootstrap, topic, len(wanted), kgo.ReadCommitted())
		if err != nil {
			return err
		}
		for value := range wanted {
			if committed[value] != 1 {
				return fmt.Errorf("record %s was read %d times", value, committed[value])
			}
		}
		_, err = readAll(ctx, bootstrap, topic, transactions*perEach, kgo.ReadUncommitted())
		return err
	})
	step("offsets count with the transaction, or not at all", func(ctx context.Context) error {
		from, err := create(ctx, "from")
		if err != nil {
			return err
		}
		to, err := create(ctx, "to")
		if err != nil {
			return err
		}
		for i := 0; i < transactions*perEach; i++ {
			client.Produce(ctx, &kgo.Record{Topic: from, Value: []byte(fmt.Sprint(i))}, nil)
		}
		if err := client.Flush(ctx); err != nil {
			return err
		}
		session, err := kgo.NewGroupTransactSession(brokers(bootstrap, kgo.TransactionalID(prefix+"-copy"),
			kgo.ConsumerGroup(prefix+"-copy"), kgo.ConsumeTopics(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(), kgo.DefaultProduceTopic(to))...)
		if err != nil {
			return err
		}
		defer session.Close()
		for done, number := 0, 0; done < transactions*perEach; number++ {
			fetches := session.PollRecords(ctx, perEach)
			if ctx.Err() != nil {
				return fmt.Errorf("only %d records were copied: %w", done, ctx.Err())
			}
			if err := session.Begin(); err != nil {
				return err
			}
			count := 0
			fetches.EachRecord(func(r *kgo.Record) {
				count++
				session.Produce(ctx, &kgo.Record{Value: r.Value}, nil)
			})
			committed, err := session.End(ctx, kgo.TransactionEndTry(number%3 != 1))
			if err != nil {
				return err
			}
			if committed {
				done += count
			}
		}
		copied, err := readAll(ctx, bootstrap, to, transactions*perEach, kgo.ReadCommitted())
		if err != nil {
			return err
		}
		if len(copied) != transactions*perEach {
			return fmt.Errorf("%d of %d records are there", len(copied), transactions*perEach)
		}
		return nil
	})
	step("a successor fences", func(ctx context.Context) error {
		topic, err := create(ctx, "fence")
		if err != nil {
			return err
		}
		var producers [2]*kgo.Client
		for i := range producers {
			producers[i], err = kgo.NewClient(brokers(bootstrap, kgo.TransactionalID(prefix+"-fence"), kgo.DefaultProduceTopic(topic))...)
			if err != nil {
				return err
			}
			defer producers[i].Close()
			if err := producers[i].BeginTransaction(); err != nil {
				return err
			}
			if err := producers[i].ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(i))).FirstErr(); err != nil {
				return err
			}
		}
		err = producers[0].EndTransaction(ctx, kgo.TryCommit)
		if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
			return fmt.Errorf("the fenced producer's commit: %v", err)
		}
		if err := producers[1].EndTransaction(ctx, kgo.TryCommit); err != nil {
			return err
		}
		read, err := readAll(ctx, bootstrap, topic, 1, kgo.ReadCommitted())
		if err == nil && read["1"] != 1 {
			err = fmt.Errorf("read %v", read)
		}
		return err
	})
}

// Reads `count` records, and how often each value came.
func readAll(ctx context.Context, bootstrap, topic string, count int, isolation kgo.IsolationLevel) (map[string]int, error) {
	consumer, err := kgo.NewClient(brokers(bootstrap, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	read := map[string]int{}
	for n := 0; n < count; {
		consumer.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			read[string(r.Value)]++
			n++
		})
		if ctx.Err() != nil {
			return nil, fmt.Errorf("only %d of %d records came: %w", n, count, ctx.Err())
		}
	}
	return read, nil
}
