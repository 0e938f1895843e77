// A program that uses the client libraries franz-go and sarama against a broker.
//
//	conformance BOOTSTRAP round-trip PREFIX FACTOR   produce, consume, groups, admin, on a topic with FACTOR replicas
//	conformance BOOTSTRAP produce TOPIC=CODEC...     writes the records of the codec tests
//	conformance BOOTSTRAP digest TOPIC...            prints the digest of each topic's records
//	conformance BOOTSTRAP transactional PREFIX FACTOR   transactions, on topics with FACTOR replicas
//	conformance BOOTSTRAP sarama-transactional PREFIX FACTOR   the same by sarama; all other commands use franz-go
//
// Where clients have to log in, franz-go finds how in the variables of its own tests (see brokers.go).
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
		roundTrip(bootstrap, rest[0], replicas(rest[1]))
	case "transactional":
		transactional(bootstrap, rest[0], replicas(rest[1]))
	case "sarama-transactional":
		saramaTransactional(bootstrap, rest[0], replicas(rest[1]))
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

func replicas(argument string) int16 {
	factor, err := strconv.ParseInt(argument, 10, 16)
	if err != nil {
		panic(err)
	}
	return int16(factor)
}
