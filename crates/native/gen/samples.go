package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"
)

// sample is one object and what Go makes of it.
type sample struct {
	In  json.RawMessage `json:"in"`
	Out json.RawMessage `json:"out,omitempty"`
	// The enveloped protobuf form of Out, in base64.
	Proto string `json:"proto,omitempty"`
}

// mutation is the full object with the value at one path replaced (or added).
type mutation struct {
	Path    []any           `json:"path"`
	Value   json.RawMessage `json:"value"`
	Error   string          `json:"error,omitempty"`
	Unknown []string        `json:"unknown,omitempty"`
	Out     json.RawMessage `json:"out,omitempty"`
}

type samples struct {
	Group     string            `json:"group"`
	Version   string            `json:"version"`
	Kind      string            `json:"kind"`
	Samples   map[string]sample `json:"samples"`
	Mutations []mutation        `json:"mutations,omitempty"`
}

const mutationsPerKind = 12

// writeSamples writes for every kind a minimal object, one with every field set, one with every field set to its
// zero value, one with every field null, and mutations of the full one; each with Go's result.
func writeSamples(out string) {
	var all []samples
	for _, kind := range kinds() {
		if kind.Kind == "WatchEvent" {
			// A frame rather than an object: it has no type of its own.
			continue
		}
		rng := rand.New(rand.NewSource(int64(len(all))))
		s := samples{Group: kind.Group, Version: kind.Version, Kind: kind.Kind, Samples: map[string]sample{}}
		head := map[string]any{"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind}
		if kind.GroupVersion() == metaGroup {
			head["apiVersion"] = "v1"
		}
		add := func(name string, body map[string]any) {
			in := map[string]any{}
			for k, v := range body {
				in[k] = v
			}
			for k, v := range head {
				in[k] = v
			}
			data, err := json.Marshal(in)
			check(err)
			object, unknown, err := decode(kind, data)
			if err != nil || len(unknown) > 0 {
				panic(fmt.Sprintf("%s %s: %v %v", kind, name, err, unknown))
			}
			s.Samples[name] = sample{In: data, Out: encode(kind, object), Proto: envelope(kind, object)}
		}
		add("minimal", map[string]any{})
		f := &filler{counter: len(kind.Kind)}
		if strings.HasSuffix(kind.Kind, "List") && kind.GroupVersion() != metaGroup {
			add("full", map[string]any{
				"metadata": map[string]any{"resourceVersion": "7", "continue": "next", "remainingItemCount": 0},
				"items":    []any{map[string]any{}, map[string]any{"metadata": map[string]any{"name": "x"}}},
			})
		} else {
			f.mode = full
			add("full", f.tree(kind.Type))
			f.mode = zeros
			add("zeros", f.tree(kind.Type))
			add("nulls", nulls(f.tree(kind.Type)))
			f.mode = full
			base := s.Samples["full"].In
			for range mutationsPerKind {
				if m, ok := mutate(kind, base, rng); ok {
					s.Mutations = append(s.Mutations, m)
				}
			}
		}
		all = append(all, s)
	}
	data, err := json.Marshal(all)
	check(err)
	check(os.WriteFile(out, data, 0o644))
	fmt.Fprintf(os.Stderr, "%d kinds, %d bytes\n", len(all), len(data))
}

// decode reads JSON as kube-apiserver does.
func decode(kind kind, data []byte) (any, []string, error) {
	object := reflect.New(kind.Type).Interface()
	strict, err := kjson.UnmarshalStrict(data, object)
	var unknown []string
	for _, e := range strict {
		unknown = append(unknown, e.(interface{ FieldPath() string }).FieldPath())
	}
	return object, unknown, err
}

type message interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// storedAsJSON tells which kinds never pass through protobuf on their way to the store.
func storedAsJSON(kind kind) bool {
	return kind.Group == "apiextensions.k8s.io" || kind.Group == "apiregistration.k8s.io"
}

// encode prints an object as it comes back from the store.
func encode(kind kind, object any) json.RawMessage {
	if !storedAsJSON(kind) {
		object = throughProtobuf(kind, object)
	}
	data, err := json.Marshal(object)
	check(err)
	return data
}

func throughProtobuf(kind kind, object any) any {
	raw, err := object.(message).Marshal()
	check(err)
	back := reflect.New(kind.Type)
	check(back.Interface().(message).Unmarshal(raw))
	// Protobuf does not carry the type within the message.
	if meta := back.Elem().FieldByName("TypeMeta"); meta.IsValid() {
		meta.Set(reflect.ValueOf(object).Elem().FieldByName("TypeMeta"))
	}
	return back.Interface()
}

func envelope(kind kind, object any) string {
	typed, ok := object.(runtime.Object)
	if !ok {
		return ""
	}
	serializer := protobuf.NewSerializer(nil, nil)
	var out bytes.Buffer
	check(serializer.Encode(throughProtobuf(kind, typed).(runtime.Object), &out))
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

// mutate replaces one value of the full object, or adds an unknown field to one of its objects.
func mutate(kind kind, base []byte, rng *rand.Rand) (mutation, bool) {
	var tree any
	check(json.Unmarshal(base, &tree))
	var path []any
	node := tree
	for depth := 0; ; depth++ {
		// Stop at a random depth, but not at the top, where the type is named.
		if depth > 0 && rng.Intn(4) == 0 {
			break
		}
		switch at := node.(type) {
		case map[string]any:
			keys := []string{}
			for key := range at {
				if depth > 0 || (key != "kind" && key != "apiVersion") {
					keys = append(keys, key)
				}
			}
			if len(keys) == 0 {
				goto found
			}
			sort.Strings(keys)
			key := keys[rng.Intn(len(keys))]
			path = append(path, key)
			node = at[key]
		case []any:
			if len(at) == 0 {
				goto found
			}
			path = append(path, 0)
			node = at[0]
		default:
			goto found
		}
	}
found:
	if len(path) == 0 {
		return mutation{}, false
	}
	values := []string{`"text"`, `12`, `1.5`, `true`, `[]`, `{}`, `null`, `[1]`, `{"x":1}`, `-3`, `99999999999`, `""`, `"1"`, `["a"]`}
	value := values[rng.Intn(len(values))]
	if _, isObject := node.(map[string]any); isObject && rng.Intn(2) == 0 {
		path = append(path, "surprise")
	}
	var replacement any
	check(json.Unmarshal([]byte(value), &replacement))
	changed := replace(tree, path, replacement)
	data, err := json.Marshal(changed)
	check(err)
	object, unknown, err := decode(kind, data)
	m := mutation{Path: path, Value: json.RawMessage(value), Unknown: unknown}
	if err != nil {
		m.Error = err.Error()
	} else {
		m.Out = encode(kind, object)
	}
	return m, true
}

func replace(node any, path []any, value any) any {
	if len(path) == 0 {
		return value
	}
	switch at := node.(type) {
	case map[string]any:
		at[path[0].(string)] = replace(at[path[0].(string)], path[1:], value)
	case []any:
		at[path[0].(int)] = replace(at[path[0].(int)], path[1:], value)
	}
	return node
}

type mode int

const (
	full mode = iota
	zeros
)

// filler sets fields by reflection, with values that differ from each other.
type filler struct {
	counter int
	mode    mode
	stack   []reflect.Type
}

// tree returns the object as a JSON tree in which every field is present, also where Go would omit it.
func (f *filler) tree(typ reflect.Type) map[string]any {
	tree := map[string]any{}
	f.fields(typ, tree)
	return tree
}

func (f *filler) fields(typ reflect.Type, into map[string]any) {
	f.stack = append(f.stack, typ)
	defer func() { f.stack = f.stack[:len(f.stack)-1] }()
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || (!field.IsExported() && !field.Anonymous) {
			continue
		}
		if name == "" && field.Anonymous {
			f.fields(field.Type, into)
			continue
		}
		if name == "" {
			name = field.Name
		}
		if f.tooDeep(field.Type) {
			continue
		}
		into[name] = f.value(field.Type)
	}
}

// tooDeep ends the recursion of CRD schemas.
func (f *filler) tooDeep(typ reflect.Type) bool {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
		typ = typ.Elem()
	}
	if _, ok := special[typ]; ok && strings.HasPrefix(special[typ], "schemaor") {
		typ = reflect.TypeOf(apiextensionsv1.JSONSchemaProps{})
	}
	n := 0
	for _, t := range f.stack {
		if t == typ {
			n++
		}
	}
	return n >= 2
}

func (f *filler) value(typ reflect.Type) any {
	f.counter++
	n := f.counter
	zero := f.mode == zeros
	switch typ {
	case reflect.TypeOf(metav1.Time{}):
		return time.Date(2024, 2, 29, 12, n%60, 7, 0, time.UTC).Format(time.RFC3339)
	case reflect.TypeOf(metav1.MicroTime{}):
		return time.Date(2024, 2, 29, 12, n%60, 7, n*1000, time.UTC).Format(metav1.RFC3339Micro)
	case reflect.TypeOf(metav1.Duration{}):
		return time.Duration(n * 1500 * int(time.Millisecond)).String()
	case reflect.TypeOf(resource.Quantity{}):
		if zero {
			return "0"
		}
		return []any{"1500m", "2Gi", "1e3", "0.5", fmt.Sprint(n), n, "1024Mi", "100k"}[n%8]
	case reflect.TypeOf(intstr.IntOrString{}):
		if zero {
			return []any{0, ""}[n%2]
		}
		return []any{n, fmt.Sprintf("%d%%", n)}[n%2]
	case reflect.TypeOf(runtime.RawExtension{}):
		return map[string]any{"kind": "Thing", "apiVersion": "example.com/v1", "n": n}
	case reflect.TypeOf(metav1.FieldsV1{}):
		return map[string]any{"f:spec": map[string]any{"f:x": map[string]any{}}}
	case reflect.TypeOf(apiextensionsv1.JSON{}):
		return []any{n, "text", map[string]any{"x": []any{1, "a", nil}}, true}[n%4]
	case reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrArray{}):
		schema := f.tree(reflect.TypeOf(apiextensionsv1.JSONSchemaProps{}))
		return []any{schema, []any{schema}}[n%2]
	case reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrBool{}):
		schema := f.tree(reflect.TypeOf(apiextensionsv1.JSONSchemaProps{}))
		return []any{schema, true, false}[n%3]
	case reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrStringArray{}):
		schema := f.tree(reflect.TypeOf(apiextensionsv1.JSONSchemaProps{}))
		return []any{schema, []any{"a", "b"}}[n%2]
	}
	switch typ.Kind() {
	case reflect.String:
		if zero {
			return ""
		}
		return fmt.Sprintf("text-%d", n)
	case reflect.Bool:
		return !zero
	case reflect.Int32:
		if zero {
			return 0
		}
		return n
	case reflect.Int64:
		if zero {
			return 0
		}
		return -n * 10_000_000_000
	case reflect.Float64:
		if zero {
			return 0
		}
		return []any{float64(n) + 0.5, n}[n%2]
	case reflect.Pointer:
		return f.value(typ.Elem())
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			if zero {
				return ""
			}
			return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "bytes-%d", n))
		}
		if zero {
			return []any{}
		}
		if typ.Elem().Kind() == reflect.Struct {
			return []any{f.value(typ.Elem())}
		}
		return []any{f.value(typ.Elem()), f.value(typ.Elem())}
	case reflect.Map:
		if zero {
			return map[string]any{}
		}
		return map[string]any{fmt.Sprintf("key-%d", n): f.value(typ.Elem())}
	case reflect.Struct:
		return f.tree(typ)
	}
	panic("no value for " + typ.String())
}

// nulls replaces every value but the names of types by null.
func nulls(tree map[string]any) map[string]any {
	out := map[string]any{}
	for key := range tree {
		out[key] = nil
	}
	return out
}
