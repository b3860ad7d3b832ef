package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"strconv"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// special names the types whose JSON form is written by hand in Go.
var special = map[reflect.Type]string{
	reflect.TypeOf(metav1.Time{}):                                  "time",
	reflect.TypeOf(metav1.MicroTime{}):                             "microtime",
	reflect.TypeOf(metav1.Duration{}):                              "duration",
	reflect.TypeOf(resource.Quantity{}):                            "quantity",
	reflect.TypeOf(intstr.IntOrString{}):                           "intorstring",
	reflect.TypeOf(runtime.RawExtension{}):                         "rawextension",
	reflect.TypeOf(metav1.FieldsV1{}):                              "fieldsv1",
	reflect.TypeOf(apiextensionsv1.JSON{}):                         "json",
	reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrArray{}):       "schemaorarray",
	reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrBool{}):        "schemaorbool",
	reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrStringArray{}): "schemaorstringarray",
}

// typeRow describes one Go type; rows refer to each other by position.
type typeRow struct {
	// As Go's reflection prints it: v1.Pod, []v1.Container, map[string]string.
	Go   string `json:"go"`
	Kind string `json:"k"`
	// Element of pointers, lists and maps.
	Elem *int `json:"e,omitempty"`
	// A list that is a protobuf message of its own (`items = 1`).
	Message bool       `json:"m,omitempty"`
	Fields  []fieldRow `json:"f,omitempty"`
	// Name in the OpenAPI documents.
	Model   string `json:"o,omitempty"`
	MapType string `json:"mt,omitempty"`
}

type fieldRow struct {
	// JSON name; empty for an inlined struct.
	Name   string `json:"n,omitempty"`
	GoName string `json:"g,omitempty"`
	Type   int    `json:"t"`
	Number int    `json:"p,omitempty"`
	// v varint, b length-delimited, f fixed64.
	Wire      string          `json:"w,omitempty"`
	OmitEmpty bool            `json:"oe,omitempty"`
	OmitZero  bool            `json:"oz,omitempty"`
	Inline    bool            `json:"i,omitempty"`
	Patch     string          `json:"ps,omitempty"`
	MergeKey  string          `json:"mk,omitempty"`
	ListType  string          `json:"lt,omitempty"`
	ListKeys  []string        `json:"lk,omitempty"`
	MapType   string          `json:"mt,omitempty"`
	Default   json.RawMessage `json:"d,omitempty"`
}

type table struct {
	Types []typeRow      `json:"types"`
	Kinds map[string]int `json:"kinds"`

	index   map[reflect.Type]int
	openapi map[string]definition
}

type definition struct {
	MapType    string              `json:"x-kubernetes-map-type"`
	Properties map[string]property `json:"properties"`
}

type property struct {
	ListType      string          `json:"x-kubernetes-list-type"`
	ListMapKeys   []string        `json:"x-kubernetes-list-map-keys"`
	MapType       string          `json:"x-kubernetes-map-type"`
	PatchStrategy string          `json:"x-kubernetes-patch-strategy"`
	PatchMergeKey string          `json:"x-kubernetes-patch-merge-key"`
	Default       json.RawMessage `json:"default"`
}

// writeTypes writes the table of all types; the topology of lists and maps and the defaults come from the OpenAPI
// documents (v3: the v2 document has no defaults).
func writeTypes(openapiFiles []string, out string) {
	definitions := map[string]definition{}
	for _, file := range openapiFiles {
		var document struct {
			Components struct {
				Schemas map[string]definition `json:"schemas"`
			} `json:"components"`
		}
		raw, err := os.ReadFile(file)
		check(err)
		check(json.Unmarshal(raw, &document))
		maps.Copy(definitions, document.Components.Schemas)
	}

	t := &table{Kinds: map[string]int{}, index: map[reflect.Type]int{}, openapi: definitions}
	for _, kind := range kinds() {
		t.Kinds[kind.Group+"/"+kind.Version+"/"+kind.Kind] = t.add(kind.Type)
	}
	// No kinds, but the text of annotations that carry what autoscaling/v1 has no field for.
	for _, part := range []any{
		autoscalingv1.MetricSpec{}, autoscalingv1.MetricStatus{}, autoscalingv1.HorizontalPodAutoscalerCondition{},
	} {
		typ := reflect.TypeOf(part)
		t.Kinds["autoscaling/v1/"+typ.Name()] = t.add(typ)
	}
	data, err := json.Marshal(t)
	check(err)
	check(os.WriteFile(out, data, 0o644))
	fmt.Fprintf(os.Stderr, "%d types, %d kinds, %d bytes\n", len(t.Types), len(t.Kinds), len(data))
}

func (t *table) add(typ reflect.Type) int { return t.addInlined(typ, definition{}) }

// addInlined also takes the definition of the struct into which the type is inlined.
func (t *table) addInlined(typ reflect.Type, outer definition) int {
	if at, known := t.index[typ]; known {
		return at
	}
	at := len(t.Types)
	t.index[typ] = at
	t.Types = append(t.Types, typeRow{})
	row := typeRow{Go: typ.String()}
	elem := func() {
		e := t.add(typ.Elem())
		row.Elem = &e
	}
	if name, ok := special[typ]; ok {
		row.Kind = name
		switch name {
		case "schemaorarray", "schemaorbool", "schemaorstringarray":
			e := t.add(reflect.TypeOf(apiextensionsv1.JSONSchemaProps{}))
			row.Elem = &e
		}
	} else {
		switch typ.Kind() {
		case reflect.String:
			row.Kind = "string"
		case reflect.Bool:
			row.Kind = "bool"
		case reflect.Int32:
			row.Kind = "int32"
		case reflect.Int64:
			row.Kind = "int64"
		case reflect.Uint8:
			row.Kind = "uint8"
		case reflect.Float64:
			row.Kind = "float64"
		case reflect.Pointer:
			row.Kind = "ptr"
			elem()
		case reflect.Slice:
			if typ.Elem().Kind() == reflect.Uint8 {
				row.Kind = "bytes"
				break
			}
			row.Kind = "list"
			row.Message = isMessage(typ)
			elem()
		case reflect.Map:
			if typ.Key().Kind() != reflect.String {
				panic("map key of " + typ.String())
			}
			row.Kind = "map"
			elem()
		case reflect.Struct:
			row.Kind = "struct"
			if model, ok := reflect.New(typ).Interface().(interface{ OpenAPIModelName() string }); ok {
				row.Model = model.OpenAPIModelName()
			}
			// A struct that is only ever inlined has no definition; its fields stand in the outer one.
			def, ok := t.openapi[row.Model]
			if !ok {
				def = outer
			}
			row.MapType = def.MapType
			for i := range typ.NumField() {
				if field, ok := t.field(typ.Field(i), def); ok {
					row.Fields = append(row.Fields, field)
				}
			}
		default:
			panic("no form for " + typ.String())
		}
	}
	t.Types[at] = row
	return at
}

func (t *table) field(f reflect.StructField, def definition) (fieldRow, bool) {
	tag, hasTag := f.Tag.Lookup("json")
	if tag == "-" || (!f.IsExported() && !f.Anonymous) {
		return fieldRow{}, false
	}
	name, options, _ := strings.Cut(tag, ",")
	row := fieldRow{Name: name, GoName: f.Name}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty":
			row.OmitEmpty = true
		case "omitzero":
			row.OmitZero = true
		case "inline", "":
		default:
			panic("json option " + option + " of " + f.Name)
		}
	}
	if name == "" {
		if !f.Anonymous {
			if hasTag && tag != "" {
				panic("unnamed field " + f.Name)
			}
			row.Name = f.Name
		} else {
			row.Inline = true
		}
	}
	if tag, ok := f.Tag.Lookup("protobuf"); ok && tag != "-" {
		parts := strings.Split(tag, ",")
		row.Number, _ = strconv.Atoi(parts[1])
		switch parts[0] {
		case "varint":
			row.Wire = "v"
		case "bytes":
			row.Wire = "b"
		case "fixed64":
			row.Wire = "f"
		default:
			panic("wire type " + parts[0])
		}
	}
	if row.Inline {
		row.Type = t.addInlined(f.Type, def)
	} else {
		row.Type = t.add(f.Type)
	}
	row.Patch = f.Tag.Get("patchStrategy")
	row.MergeKey = f.Tag.Get("patchMergeKey")
	p := def.Properties[row.Name]
	if p.PatchStrategy != row.Patch || p.PatchMergeKey != row.MergeKey {
		fmt.Fprintf(os.Stderr, "patch tags of %s differ: %q %q\n", f.Name, row.Patch, p.PatchStrategy)
	}
	row.ListType, row.ListKeys, row.MapType = p.ListType, p.ListMapKeys, p.MapType
	// An empty object says no more than the struct's type.
	if string(p.Default) != "{}" {
		row.Default = p.Default
	}
	return row, true
}

// isMessage tells whether protobuf knows the type as a message of its own.
func isMessage(typ reflect.Type) bool {
	_, ok := reflect.New(typ).Interface().(interface{ Marshal() ([]byte, error) })
	return ok
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
