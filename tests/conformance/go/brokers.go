package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// The options of a client of the brokers in "host:port,host:port". Two variables of franz-go's own tests make it secure:
// KGO_TEST_TLS ("ca:FILE") and KGO_TEST_SCRAM ("USER:PASSWORD:512").
func brokers(bootstrap string, more ...kgo.Opt) []kgo.Opt {
	options := append([]kgo.Opt{kgo.SeedBrokers(strings.Split(bootstrap, ",")...)}, more...)
	if file, found := strings.CutPrefix(os.Getenv("KGO_TEST_TLS"), "ca:"); found {
		content, err := os.ReadFile(file)
		authorities := x509.NewCertPool()
		if err != nil || !authorities.AppendCertsFromPEM(content) {
			panic("no certificates in " + file)
		}
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: authorities}))
	}
	if user, rest, found := strings.Cut(os.Getenv("KGO_TEST_SCRAM"), ":"); found {
		auth := scram.Auth{User: user, Pass: strings.TrimSuffix(rest, ":512")}
		options = append(options, kgo.SASL(auth.AsSha512Mechanism()))
	}
	return options
}
