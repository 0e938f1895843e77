// check reads Kubernetes manifests from standard input and prints, one a line, the objections of an API server:
//   - unknown fields and wrong types, in Kubernetes' own kinds and in the Prometheus operator's,
//   - definitions that aren't structural, or whose CEL rules don't compile or cost too much,
//   - resources that their definition (--crd FILE, repeatable) refuses, also by CEL; a resource that comes a second time
//     is an update of the first,
//   - alerts that Prometheus couldn't load,
//   - pods that Pod Security "restricted" wouldn't admit.
//
// The code of Kubernetes, Prometheus and its operator decides. check exits with 1 if there are any objections.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	apicel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/pod-security-admission/admission"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

type files []string

func (f *files) String() string     { return strings.Join(*f, ",") }
func (f *files) Set(s string) error { *f = append(*f, s); return nil }

// definition is a CRD's stored version, as the API server uses it.
type definition struct {
	structural *structural.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator
}

var (
	strict     runtime.Decoder
	types      = runtime.NewScheme()
	known      = map[schema.GroupKind]definition{}
	before     = map[string]map[string]any{}
	evaluator  policy.Evaluator
	objections int
)

func main() {
	var crds files
	flag.Var(&crds, "crd", "a file with CustomResourceDefinitions")
	flag.Parse()

	install.Install(types)
	must(scheme.AddToScheme(types))
	must(monitoring.AddToScheme(types))
	strict = serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()
	var err error
	evaluator, err = policy.NewEvaluator(policy.DefaultChecks(), nil)
	must(err)

	for _, name := range crds {
		file, err := os.Open(name)
		must(err)
		each(file, func(document []byte) { define(name, document) })
	}
	each(os.Stdin, check)
	if objections > 0 {
		os.Exit(1)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func object(where, format string, arguments ...any) {
	objections++
	fmt.Printf("%s: %s\n", where, fmt.Sprintf(format, arguments...))
}

// each calls do with every YAML document that isn't empty.
func each(from io.Reader, do func([]byte)) {
	reader := yamlstream.NewYAMLReader(bufio.NewReader(from))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		must(err)
		var content any
		must(yaml.Unmarshal(document, &content))
		if content != nil {
			do(document)
		}
	}
}

// define checks a CRD and keeps its schema for later resources.
func define(where string, document []byte) {
	decoded, _, err := strict.Decode(document, nil, nil)
	if err != nil {
		object(where, "%v", err)
		return
	}
	external, ok := decoded.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		object(where, "is no CustomResourceDefinition")
		return
	}
	types.Default(external)
	internal := &apiextensions.CustomResourceDefinition{}
	must(types.Convert(external, internal, nil))
	for _, version := range internal.Spec.Versions {
		internal.Status.StoredVersions = append(internal.Status.StoredVersions, version.Name)
	}
	for _, e := range definitions.ValidateCustomResourceDefinition(context.Background(), internal) {
		object(external.Name, "%v", e)
	}
	for _, version := range internal.Spec.Versions {
		own, err := apiextensions.GetSchemaForVersion(internal, version.Name)
		must(err)
		shape, err := structural.NewStructural(own.OpenAPIV3Schema)
		if err != nil {
			object(external.Name, "%v", err)
			continue
		}
		validator, _, err := validation.NewSchemaValidator(own.OpenAPIV3Schema)
		must(err)
		known[schema.GroupKind{Group: internal.Spec.Group, Kind: internal.Spec.Names.Kind}] = definition{
			structural: shape, validator: validator, rules: cel.NewValidator(shape, true, apicel.PerCallLimit),
		}
	}
}

func check(document []byte) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		object("a document", "%v", err)
		return
	}
	// This decoder tells integers from other numbers, as CEL rules do.
	var content map[string]any
	must(json.Unmarshal(text, &content))
	resource := &unstructured.Unstructured{Object: content}
	kind := resource.GroupVersionKind()
	where := fmt.Sprintf("%s %s", kind.Kind, resource.GetName())
	if own, ok := known[kind.GroupKind()]; ok {
		checkOwn(where, own, resource)
		return
	}
	decoded, _, err := strict.Decode(text, nil, nil)
	if err != nil {
		object(where, "%v", err)
		return
	}
	if rule, ok := decoded.(*monitoring.PrometheusRule); ok {
		checkRule(where, rule)
	}
	checkPods(where, decoded)
}

// checkOwn validates a new or changed resource of Ottla's as the API server does.
func checkOwn(where string, own definition, resource *unstructured.Unstructured) {
	now := resource.DeepCopy().Object
	defaulting.Default(now, own.structural)
	unknown := pruning.PruneWithOptions(now, own.structural, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		object(where, "unknown field %s", path)
	}
	// old stays an untyped nil for a new resource: a nil map in an interface would count as an old resource.
	var old any
	found := field.ErrorList{}
	if earlier, ok := before[where]; ok {
		old = earlier
		found = validation.ValidateCustomResourceUpdate(nil, now, old, own.validator)
	} else {
		found = validation.ValidateCustomResource(nil, now, own.validator)
	}
	found = append(found, listtype.ValidateListSetsAndMaps(nil, own.structural, now)...)
	ruled, _ := own.rules.Validate(context.Background(), field.NewPath(""), own.structural, now, old, apicel.RuntimeCELCostBudget)
	for _, e := range append(found, ruled...) {
		object(where, "%v", e)
	}
	before[where] = now
}

func checkRule(where string, rule *monitoring.PrometheusRule) {
	text, err := yaml.Marshal(map[string]any{"groups": rule.Spec.Groups})
	must(err)
	_, found := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	for _, e := range found {
		object(where, "%v", e)
	}
}

func checkPods(where string, decoded runtime.Object) {
	metadata, spec, err := admission.DefaultPodSpecExtractor{}.ExtractPodSpec(decoded)
	if err != nil || spec == nil {
		return
	}
	level := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, metadata, spec))
	if !result.Allowed {
		object(where, "not restricted: %s", result.ForbiddenDetail())
	}
	every := append(append([]corev1.Container{}, spec.InitContainers...), spec.Containers...)
	for _, container := range every {
		if c := container.SecurityContext; c == nil || c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem {
			object(where, "container %s: its root file system can be written", container.Name)
		}
		if container.Resources.Requests == nil || container.Resources.Limits.Memory().IsZero() {
			object(where, "container %s has no requests, or no limit of its memory", container.Name)
		}
	}
}
