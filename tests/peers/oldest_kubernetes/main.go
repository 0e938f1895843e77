// oldest-kubernetes reads files with CustomResourceDefinitions and prints, one a line, what the API server of the oldest
// Kubernetes that Ottla is for would object to: schemas that aren't structural, CEL rules that don't compile there, or that it
// thinks too expensive (its estimates are higher than those of newer ones). It exits with 1 where there is anything.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func main() {
	types := runtime.NewScheme()
	install.Install(types)
	objections := 0
	for _, name := range os.Args[1:] {
		content, err := os.ReadFile(name)
		must(err)
		var crd v1.CustomResourceDefinition
		must(yaml.UnmarshalStrict(content, &crd))
		types.Default(&crd)
		var internal apiextensions.CustomResourceDefinition
		must(types.Convert(&crd, &internal, nil))
		internal.Status.StoredVersions = []string{crd.Spec.Versions[0].Name}
		for _, objection := range validation.ValidateCustomResourceDefinition(context.Background(), &internal) {
			fmt.Printf("%s: %v\n", crd.Name, objection)
			objections++
		}
	}
	if objections > 0 {
		os.Exit(1)
	}
}

// must is the one of kubernetes_tools/check: modules that pin different versions of Kubernetes can't share a package.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
