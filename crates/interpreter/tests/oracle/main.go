// Answers interpreter cases with the original's interpreter: one JSON case per line on stdin, one JSON answer per
// line on stdout. `cargo xtask compare interpreter` builds it and compares its answers with the
// recorded ones. With `-bench` it measures the original instead (`cargo xtask bench interpreter`).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	goruntime "runtime"
	"time"

	configv1alpha1 "github.com/karmada-io/karmada/pkg/apis/config/v1alpha1"
	workv1alpha2 "github.com/karmada-io/karmada/pkg/apis/work/v1alpha2"
	"github.com/karmada-io/karmada/pkg/resourceinterpreter/customized/declarative"
	"github.com/karmada-io/karmada/pkg/resourceinterpreter/customized/declarative/luavm"
	"github.com/karmada-io/karmada/pkg/resourceinterpreter/default/native"
	"github.com/karmada-io/karmada/pkg/resourceinterpreter/default/thirdparty"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// query is one case. Without customizations the third-party layer answers; with `eval` a bare script runs, whose
// global function `Main` is called without arguments and whose results are printed with tostring.
type query struct {
	Name           string                                             `json:"name"`
	Operation      string                                             `json:"operation"`
	Customizations []*configv1alpha1.ResourceInterpreterCustomization `json:"customizations,omitempty"`
	Eval           *string                                            `json:"eval,omitempty"`
	Desired        map[string]any                                     `json:"desired,omitempty"`
	Observed       map[string]any                                     `json:"observed,omitempty"`
	Items          []workv1alpha2.AggregatedStatusItem                `json:"items"`
	Replicas       int64                                              `json:"replicas,omitempty"`
	// Native asks the rules for Kubernetes' own kinds; only measured, never recorded.
	Native bool `json:"native,omitempty"`
}

// builtIn makes the native rules look like the other layers.
type builtIn struct{ *native.DefaultInterpreter }

func (b builtIn) GetReplicas(object *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, bool, error) {
	count, requires, err := b.DefaultInterpreter.GetReplicas(object)
	return count, requires, true, err
}

func (b builtIn) GetComponents(*unstructured.Unstructured) ([]workv1alpha2.Component, bool, error) {
	return nil, false, nil
}

func (b builtIn) ReviseReplica(object *unstructured.Unstructured, replica int64) (*unstructured.Unstructured, bool, error) {
	result, err := b.DefaultInterpreter.ReviseReplica(object, replica)
	return result, true, err
}

func (b builtIn) Retain(desired, observed *unstructured.Unstructured) (*unstructured.Unstructured, bool, error) {
	result, err := b.DefaultInterpreter.Retain(desired, observed)
	return result, true, err
}

func (b builtIn) AggregateStatus(object *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (*unstructured.Unstructured, bool, error) {
	result, err := b.DefaultInterpreter.AggregateStatus(object, items)
	return result, true, err
}

func (b builtIn) GetDependencies(object *unstructured.Unstructured) ([]configv1alpha1.DependentObjectReference, bool, error) {
	result, err := b.DefaultInterpreter.GetDependencies(object)
	return result, true, err
}

func (b builtIn) ReflectStatus(object *unstructured.Unstructured) (*runtime.RawExtension, bool, error) {
	result, err := b.DefaultInterpreter.ReflectStatus(object)
	return result, true, err
}

func (b builtIn) InterpretHealth(object *unstructured.Unstructured) (bool, bool, error) {
	result, err := b.DefaultInterpreter.InterpretHealth(object)
	return result, true, err
}

// measure answers one case again and again for a while.
func measure(line []byte, duration time.Duration) map[string]any {
	q := &query{}
	if err := json.Unmarshal(line, q); err != nil {
		return map[string]any{"error": err.Error()}
	}
	var in interpreter
	switch {
	case q.Native:
		in = builtIn{native.NewDefaultInterpreter()}
	case q.Customizations != nil:
		declared := declarative.NewConfigurableInterpreter(nil)
		declared.LoadConfig(q.Customizations)
		in = declared
	default:
		in = thirdparty.NewConfigurableInterpreter()
	}
	once := func() error {
		each := *q
		// Callers hand out copies, since some rules change what they get.
		switch q.Operation {
		case "ReviseReplica", "Retain", "AggregateStatus":
			each.Desired = runtime.DeepCopyJSON(q.Desired)
		}
		_, _, err := answer(in, &each)
		return err
	}
	if err := once(); err != nil {
		return map[string]any{"error": err.Error()}
	}
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	started, count := time.Now(), 0
	for time.Since(started) < duration {
		for range 16 {
			_ = once()
		}
		count += 16
	}
	took := time.Since(started)
	goruntime.ReadMemStats(&after)
	return map[string]any{
		"rate":        float64(count) / took.Seconds(),
		"allocations": float64(after.Mallocs-before.Mallocs) / float64(count),
	}
}

type interpreter interface {
	GetReplicas(object *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, bool, error)
	GetComponents(object *unstructured.Unstructured) ([]workv1alpha2.Component, bool, error)
	ReviseReplica(object *unstructured.Unstructured, replica int64) (*unstructured.Unstructured, bool, error)
	Retain(desired, observed *unstructured.Unstructured) (*unstructured.Unstructured, bool, error)
	AggregateStatus(object *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (*unstructured.Unstructured, bool, error)
	GetDependencies(object *unstructured.Unstructured) ([]configv1alpha1.DependentObjectReference, bool, error)
	ReflectStatus(object *unstructured.Unstructured) (*runtime.RawExtension, bool, error)
	InterpretHealth(object *unstructured.Unstructured) (bool, bool, error)
}

func answer(in interpreter, q *query) (out any, enabled bool, err error) {
	object := func(fields map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: fields}
	}
	subject := q.Desired
	if subject == nil {
		subject = q.Observed
	}
	switch q.Operation {
	case "InterpretReplica":
		var count int32
		var requires *workv1alpha2.ReplicaRequirements
		count, requires, enabled, err = in.GetReplicas(object(subject))
		out = map[string]any{"replica": count, "requires": requires}
	case "InterpretComponent":
		out, enabled, err = in.GetComponents(object(subject))
	case "ReviseReplica":
		var result *unstructured.Unstructured
		result, enabled, err = in.ReviseReplica(object(subject), q.Replicas)
		if result != nil {
			out = result.Object
		}
	case "Retain":
		var result *unstructured.Unstructured
		result, enabled, err = in.Retain(object(q.Desired), object(q.Observed))
		if result != nil {
			out = result.Object
		}
	case "AggregateStatus":
		var result *unstructured.Unstructured
		result, enabled, err = in.AggregateStatus(object(subject), q.Items)
		if result != nil {
			out = result.Object
		}
	case "InterpretDependency":
		out, enabled, err = in.GetDependencies(object(subject))
	case "InterpretStatus":
		var result *runtime.RawExtension
		result, enabled, err = in.ReflectStatus(object(subject))
		if result != nil {
			out = json.RawMessage(result.Raw)
		}
	case "InterpretHealth":
		out, enabled, err = in.InterpretHealth(object(subject))
	default:
		err = fmt.Errorf("unknown operation %q", q.Operation)
	}
	return out, enabled, err
}

func eval(script string) (out any, err error) {
	vm := luavm.New(false, 1)
	values, err := vm.RunScript(script, "Main", 3)
	if err != nil {
		return nil, err
	}
	printed := []string{}
	for _, value := range values {
		switch value.Type() {
		case lua.LTTable, lua.LTFunction, lua.LTUserData:
			printed = append(printed, value.Type().String())
		default:
			printed = append(printed, value.Type().String()+":"+value.String())
		}
	}
	return printed, nil
}

func handle(line []byte) (result map[string]any) {
	result = map[string]any{}
	defer func() {
		if fault := recover(); fault != nil {
			result["panic"] = fmt.Sprint(fault)
		}
	}()
	q := &query{}
	if err := json.Unmarshal(line, q); err != nil {
		result["error"] = "unreadable case: " + err.Error()
		return
	}
	var out any
	var err error
	enabled := true
	switch {
	case q.Eval != nil:
		out, err = eval(*q.Eval)
	case q.Customizations != nil:
		in := declarative.NewConfigurableInterpreter(nil)
		in.LoadConfig(q.Customizations)
		out, enabled, err = answer(in, q)
	default:
		// A fresh one for each case: the original's states keep the globals of earlier scripts.
		out, enabled, err = answer(thirdparty.NewConfigurableInterpreter(), q)
	}
	switch {
	case err != nil:
		result["error"] = err.Error()
	case !enabled:
		result["disabled"] = true
	default:
		result["output"] = out
	}
	return
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	respond := handle
	if len(os.Args) > 1 && os.Args[1] == "-bench" {
		respond = func(line []byte) map[string]any { return measure(line, 200*time.Millisecond) }
	}
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 1 {
			if err := encoder.Encode(respond(line)); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		if err != nil {
			return
		}
	}
}
