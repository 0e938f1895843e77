// gitops_health finds out how Argo CD and Flux judge the health of resources. It reads one JSON document from standard input, {"judge": …,
// "check": …, "objects": […]}, and prints a JSON list with the verdict on each object. The judges are
//   - argocd: a health.lua, run by Argo CD's Lua with the libraries that Argo CD gives it,
//   - flux: the expressions of a healthCheckExprs entry, by Flux's own evaluator,
//   - kstatus: the library by which Flux and similar tools judge a resource without any expression.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type question struct {
	Judge   string            `json:"judge"`
	Check   json.RawMessage   `json:"check"`
	Objects []json.RawMessage `json:"objects"`
}

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	var asked question
	must(json.NewDecoder(os.Stdin).Decode(&asked))
	verdicts := []verdict{}
	for _, raw := range asked.Objects {
		object := &unstructured.Unstructured{}
		must(object.UnmarshalJSON(raw)) // whole numbers become int64, as everywhere in Kubernetes
		switch asked.Judge {
		case "argocd":
			var script string
			must(json.Unmarshal(asked.Check, &script))
			verdicts = append(verdicts, argocd(script, object))
		case "flux":
			var expressions kustomize.HealthCheckExpressions
			must(json.Unmarshal(asked.Check, &expressions))
			evaluator, err := cel.NewStatusEvaluator(&expressions)
			must(err)
			found, err := evaluator.Evaluate(context.Background(), object)
			if err != nil { // Flux keeps waiting for such a resource
				found = &status.Result{Status: status.UnknownStatus, Message: err.Error()}
			}
			verdicts = append(verdicts, verdict{Status: string(found.Status), Message: found.Message})
		case "kstatus":
			found, err := status.Compute(object)
			must(err)
			verdicts = append(verdicts, verdict{Status: string(found.Status), Message: found.Message})
		default:
			must(fmt.Errorf("no judge %q", asked.Judge))
		}
	}
	must(json.NewEncoder(os.Stdout).Encode(verdicts))
}

func argocd(script string, object *unstructured.Unstructured) verdict {
	machine := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer machine.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		must(machine.CallByParam(lua.P{Fn: machine.NewFunction(library.open), Protect: true}, lua.LString(library.name)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	machine.SetContext(ctx)
	machine.SetGlobal("obj", value(machine, object.Object))
	must(machine.DoString(script))
	answer, isTable := machine.Get(-1).(*lua.LTable)
	if !isTable {
		must(fmt.Errorf("the script returns a %s", machine.Get(-1).Type()))
	}
	return verdict{
		Status:  lua.LVAsString(answer.RawGetString("status")),
		Message: lua.LVAsString(answer.RawGetString("message")),
	}
}

func value(machine *lua.LState, of any) lua.LValue {
	switch found := of.(type) {
	case bool:
		return lua.LBool(found)
	case float64:
		return lua.LNumber(found)
	case int64:
		return lua.LNumber(found)
	case string:
		return lua.LString(found)
	case []any:
		table := machine.CreateTable(len(found), 0)
		for _, each := range found {
			table.Append(value(machine, each))
		}
		return table
	case map[string]any:
		table := machine.CreateTable(0, len(found))
		for name, each := range found {
			table.RawSetH(lua.LString(name), value(machine, each))
		}
		return table
	}
	return lua.LNil
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
