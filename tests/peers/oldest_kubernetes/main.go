// oldest-kubernetes reads files with CustomResourceDefinitions and prints, one a line, the objections of the API server
// of the oldest Kubernetes that Ottla supports: schemas that aren't structural, and CEL rules that don't compile there or
// are estimated as too expensive (its estimates are higher than newer versions'). It exits with 1 if there are any.
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

// must is a copy of kubernetes_tools/check's: modules that pin different versions of Kubernetes can't share a package.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
