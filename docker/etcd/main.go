// etcd, etcdctl and etcdutl in one program: it is the one that it is called as, and etcd under any other name.
package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "etcdctl":
		ctlv3.MustStart()
	case "etcdutl":
		offline()
	default:
		etcdmain.Main(os.Args)
	}
}

// offline is etcdutl, whose own main can't be imported: what works on the files of a member that isn't running.
func offline() {
	root := &cobra.Command{Use: "etcdutl", Short: "works on the files of a stopped etcd", SilenceUsage: true}
	root.PersistentFlags().StringVarP(&etcdutl.OutputFormat, "write-out", "w", "simple", "fields, json, protobuf, simple, table")
	root.AddCommand(
		etcdutl.NewSnapshotCommand(),
		etcdutl.NewDefragCommand(),
		etcdutl.NewHashKVCommand(),
		etcdutl.NewVersionCommand(),
	)
	if root.Execute() != nil {
		os.Exit(1)
	}
}
