package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	count          = 300
	firstTimestamp = 1_700_000_000_000
)

// The records that every client of the codec tests writes.
func record(topic string, i int) *kgo.Record {
	r := &kgo.Record{Topic: topic, Partition: 0, Timestamp: time.UnixMilli(firstTimestamp + int64(i))}
	if i%7 != 0 {
		r.Key = []byte(fmt.Sprintf("key-%d", i))
	}
	if i%7 != 3 {
		r.Value = []byte(strings.Repeat(fmt.Sprintf("value %d ", i), 20))
	}
	if i%3 == 0 {
		r.Headers = []kgo.RecordHeader{{Key: "number", Value: []byte(fmt.Sprint(i))}, {Key: "empty", Value: []byte{}}}
	}
	return r
}

func produce(ctx context.Context, bootstrap, topic, codec string) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	client, err := kgo.NewClient(brokers(bootstrap, kgo.ProducerBatchCompression(codecs[codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20*time.Millisecond))...)
	if err != nil {
		return err
	}
	defer client.Close()
	var records []*kgo.Record
	for i := 0; i < count; i++ {
		records = append(records, record(topic, i))
	}
	for i, result := range client.ProduceSync(ctx, records...) {
		if result.Err != nil {
			return result.Err
		}
		if result.Record.Offset != int64(i) {
			return fmt.Errorf("record %d has offset %d", i, result.Record.Offset)
		}
	}
	return nil
}

func digest(ctx context.Context, bootstrap, topic string) (string, error) {
	client, err := kgo.NewClient(brokers(bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {0: kgo.NewOffset().AtStart()},
	}))...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	sha := sha256.New()
	for seen := 0; seen < count; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return "", err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			var headers strings.Builder
			for _, header := range r.Headers {
				fmt.Fprintf(&headers, "%s=%s;", header.Key, hexOrDash(header.Value))
			}
			fmt.Fprintf(sha, "%d|%d|%s|%s|%s\n", r.Offset, r.Timestamp.UnixMilli(), hexOrDash(r.Key), hexOrDash(r.Value), headers.String())
			seen++
		})
	}
	return hex.EncodeToString(sha.Sum(nil)), nil
}

func hexOrDash(data []byte) string {
	if data == nil {
		return "-"
	}
	return hex.EncodeToString(data)
}
