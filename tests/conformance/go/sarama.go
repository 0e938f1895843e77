package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

// The same steps as `transactional`, by sarama: commits and aborts, a group's offsets in transactions, fencing.
func saramaTransactional(bootstrap, prefix string, factor int16) {
	addresses := strings.Split(bootstrap, ",")
	create := func(name string) (string, error) {
		admin, err := sarama.NewClusterAdmin(addresses, saramaConfig(""))
		if err != nil {
			return "", err
		}
		defer admin.Close()
		topic := prefix + "-" + name
		return topic, admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: factor}, false)
	}

	step("readers of committed records see whole transactions only", func(ctx context.Context) error {
		topic, err := create("ends")
		if err != nil {
			return err
		}
		producer, err := sarama.NewSyncProducer(addresses, saramaConfig(topic))
		if err != nil {
			return err
		}
		defer producer.Close()
		wanted := map[string]bool{}
		for number := 0; number < transactions; number++ {
			if err := producer.BeginTxn(); err != nil {
				return err
			}
			var messages []*sarama.ProducerMessage
			for i := 0; i < perEach; i++ {
				value := fmt.Sprintf("%d-%d", number, i)
				if number%3 != 1 {
					wanted[value] = true
				}
				messages = append(messages, saramaMessage(topic, value))
			}
			if err := producer.SendMessages(messages); err != nil {
				return err
			}
			end := producer.CommitTxn
			if number%3 == 1 {
				end = producer.AbortTxn
			}
			if err := end(); err != nil {
				return err
			}
		}
		committed, err := saramaReadAll(ctx, addresses, topic, len(wanted), sarama.ReadCommitted)
		if err != nil {
			return err
		}
		for value := range wanted {
			if committed[value] != 1 {
				return fmt.Errorf("record %s was read %d times", value, committed[value])
			}
		}
		_, err = saramaReadAll(ctx, addresses, topic, transactions*perEach, sarama.ReadUncommitted)
		return err
	})
	step("offsets count with the transaction, or not at all", func(ctx context.Context) error {
		from, err := create("from")
		if err != nil {
			return err
		}
		to, err := create("to")
		if err != nil {
			return err
		}
		filling, err := sarama.NewSyncProducer(addresses, saramaConfig(""))
		if err != nil {
			return err
		}
		defer filling.Close()
		var messages []*sarama.ProducerMessage
		for i := 0; i < transactions*perEach; i++ {
			messages = append(messages, saramaMessage(from, fmt.Sprint(i)))
		}
		if err := filling.SendMessages(messages); err != nil {
			return err
		}
		// Every third session aborts a transaction, and ends: the next session goes on at the committed offsets.
		copier := &saramaCopier{to: to, group: to}
		copier.producer, err = sarama.NewSyncProducer(addresses, saramaConfig(to))
		if err != nil {
			return err
		}
		defer copier.producer.Close()
		group, err := sarama.NewConsumerGroup(addresses, to, saramaConfig(""))
		if err != nil {
			return err
		}
		defer group.Close()
		for copier.done < transactions*perEach {
			if ctx.Err() != nil {
				return fmt.Errorf("only %d records were copied: %w", copier.done, ctx.Err())
			}
			session, cancel := context.WithCancel(ctx)
			copier.end = cancel
			if err := group.Consume(session, []string{from}, copier); err != nil {
				return err
			}
			cancel()
			if copier.failed != nil {
				return copier.failed
			}
		}
		if copier.aborted == 0 {
			return errors.New("no transaction was aborted")
		}
		copied, err := saramaReadAll(ctx, addresses, to, transactions*perEach, sarama.ReadCommitted)
		if err == nil && len(copied) != transactions*perEach {
			err = fmt.Errorf("%d of %d records are there", len(copied), transactions*perEach)
		}
		return err
	})
	step("a successor fences", func(ctx context.Context) error {
		topic, err := create("fence")
		if err != nil {
			return err
		}
		var producers [2]sarama.SyncProducer
		for i := range producers {
			producers[i], err = sarama.NewSyncProducer(addresses, saramaConfig(topic))
			if err != nil {
				return err
			}
			defer producers[i].Close()
			if err := producers[i].BeginTxn(); err != nil {
				return err
			}
			if _, _, err := producers[i].SendMessage(saramaMessage(topic, fmt.Sprint(i))); err != nil {
				return err
			}
		}
		err = producers[0].CommitTxn()
		if !errors.Is(err, sarama.ErrProducerFenced) && !errors.Is(err, sarama.ErrInvalidProducerEpoch) {
			return fmt.Errorf("the fenced producer's commit: %v", err)
		}
		if err := producers[1].CommitTxn(); err != nil {
			return err
		}
		read, err := saramaReadAll(ctx, addresses, topic, 1, sarama.ReadCommitted)
		if err == nil && read["1"] != 1 {
			err = fmt.Errorf("read %v", read)
		}
		return err
	})
}

// A configuration for all of sarama's clients; with an id, of a transactional producer.
func saramaConfig(id string) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Flush.MaxMessages = 7 // so that a transaction has several batches of a partition
	config.Producer.Partitioner = sarama.NewRoundRobinPartitioner
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	if id != "" {
		config.Producer.Idempotent = true
		config.Producer.Transaction.ID = id
		config.Net.MaxOpenRequests = 1
	}
	return config
}

func saramaMessage(topic, value string) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
}

// Copies records in transactions that hold the group's offsets.
type saramaCopier struct {
	to, group string
	producer  sarama.SyncProducer
	end       context.CancelFunc // of the session
	turn      chan struct{}      // holds one element while no claim of the session has a transaction
	failed    error
	done      int // records of committed transactions
	begun     int
	aborted   int
}

func (copier *saramaCopier) Setup(sarama.ConsumerGroupSession) error {
	copier.turn = make(chan struct{}, 1)
	copier.turn <- struct{}{}
	return nil
}

func (copier *saramaCopier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (copier *saramaCopier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		var batch []*sarama.ConsumerMessage
		for wait := time.After(300 * time.Millisecond); len(batch) < perEach; {
			select {
			case message, open := <-claim.Messages():
				if !open {
					return nil
				}
				batch = append(batch, message)
				continue
			case <-wait:
			case <-session.Context().Done():
				return nil
			}
			break
		}
		if len(batch) == 0 {
			continue
		}
		select {
		case <-copier.turn:
		case <-session.Context().Done():
			return nil
		}
		if session.Context().Err() != nil {
			return nil
		}
		committed, err := copier.copy(session, batch)
		if err != nil {
			copier.failed = err
		}
		if err != nil || !committed || copier.done == transactions*perEach {
			copier.end()
			return nil
		}
		copier.turn <- struct{}{}
	}
}

func (copier *saramaCopier) copy(session sarama.ConsumerGroupSession, batch []*sarama.ConsumerMessage) (bool, error) {
	if err := copier.producer.BeginTxn(); err != nil {
		return false, err
	}
	var messages []*sarama.ProducerMessage
	for _, message := range batch {
		messages = append(messages, saramaMessage(copier.to, string(message.Value)))
	}
	if err := copier.producer.SendMessages(messages); err != nil {
		return false, err
	}
	last := batch[len(batch)-1]
	if err := copier.producer.AddMessageToTxnWithGroupMetadata(last,
		sarama.NewConsumerGroupMetadataFromSession(session, copier.group, nil), nil); err != nil {
		return false, err
	}
	copier.begun++
	if copier.begun%3 == 2 {
		copier.aborted++
		return false, copier.producer.AbortTxn()
	}
	if err := copier.producer.CommitTxn(); err != nil {
		return false, err
	}
	copier.done += len(batch)
	return true, nil
}

// Reads `count` records, and how often each value came.
func saramaReadAll(ctx context.Context, addresses []string, topic string, count int, isolation sarama.IsolationLevel) (map[string]int, error) {
	config := saramaConfig("")
	config.Consumer.IsolationLevel = isolation
	consumer, err := sarama.NewConsumer(addresses, config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partitions, err := consumer.Partitions(topic)
	if err != nil {
		return nil, err
	}
	arrived := make(chan string)
	ended := make(chan struct{})
	defer close(ended)
	for _, partition := range partitions {
		claim, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		defer claim.AsyncClose()
		go func() {
			for message := range claim.Messages() {
				select {
				case arrived <- string(message.Value):
				case <-ended:
					return
				}
			}
		}()
	}
	read := map[string]int{}
	for n := 0; n < count; n++ {
		select {
		case value := <-arrived:
			read[value]++
		case <-ctx.Done():
			return nil, fmt.Errorf("only %d of %d records came: %w", n, count, ctx.Err())
		}
	}
	return read, nil
}
