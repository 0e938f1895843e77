// A program that uses the client library franz-go against a broker.
//
//	conformance BOOTSTRAP round-trip PREFIX FACTOR   produce, consume, groups, admin, on a topic with FACTOR replicas
//	conformance BOOTSTRAP produce TOPIC=CODEC...     writes the records of the codec tests
//	conformance BOOTSTRAP digest TOPIC...            prints the digest of each topic's records
//	conformance BOOTSTRAP transactional PREFIX FACTOR   transactions, on topics with FACTOR replicas
//
// Prints one line for each step: "ok NAME" or "failed NAME: why".
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var failed bool

func step(name string, body func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	if err := body(ctx); err != nil {
		failed = true
		fmt.Printf("failed %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok %s\n", name)
}

func main() {
	bootstrap, command, rest := os.Args[1], os.Args[2], os.Args[3:]
	switch command {
	case "round-trip":
		factor, err := strconv.ParseInt(rest[1], 10, 16)
		if err != nil {
			panic(err)
		}
		roundTrip(bootstrap, rest[0], int16(factor))
	case "transactional":
		factor, err := strconv.ParseInt(rest[1], 10, 16)
		if err != nil {
			panic(err)
		}
		transactional(bootstrap, rest[0], int16(factor))
	case "produce":
		for _, pair := range rest {
			topic, codec, _ := strings.Cut(pair, "=")
			step(topic, func(ctx context.Context) error { return produce(ctx, bootstrap, topic, codec) })
		}
	case "digest":
		for _, topic := range rest {
			step(topic, func(ctx context.Context) error {
				digest, err := digest(ctx, bootstrap, topic)
				fmt.Printf("digest %s %s\n", topic, digest)
				return err
			})
		}
	}
	if failed {
		os.Exit(1)
	}
}

// Splits "host:port,host:port" into its addresses.
func seeds(bootstrap string) kgo.Opt {
	return kgo.SeedBrokers(strings.Split(bootstrap, ",")...)
}
