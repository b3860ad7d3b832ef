package main

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

const (
	namespace       = "churn"
	widgetNamespace = "widgets" // the reconciler makes ConfigMaps there, which must not mix with the others
)

var (
	widgets = schema.GroupVersionResource{Group: "test.karmada-rs.dev", Version: "v1", Resource: "widgets"}
	secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	crds    = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// The sequence number of a write, where every kind and every metadata-only client can see it.
const seqAnnotation = "test.karmada-rs.dev/seq"

func seenOf(object metav1.Object) seen {
	seq, _ := strconv.Atoi(object.GetAnnotations()[seqAnnotation])
	return seen{key: object.GetName(), seq: seq, revision: parseRevision(object.GetResourceVersion())}
}

// A resource is one kind of object that is written to, by one kind of client.
type resource interface {
	create(ctx context.Context, key string, seq int) (seen, error)
	update(ctx context.Context, key string, seq int) (seen, error)
	remove(ctx context.Context, key string) error
	get(ctx context.Context, key string) (seen, error)
	list(ctx context.Context) ([]seen, string, error)
}

// ConfigMaps through the typed client, which speaks protobuf.
type configMaps struct{ client kubernetes.Interface }

func (c configMaps) create(ctx context.Context, key string, seq int) (seen, error) {
	got, err := c.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: key, Annotations: map[string]string{seqAnnotation: strconv.Itoa(seq)}},
		Data:       map[string]string{"seq": strconv.Itoa(seq)},
	}, metav1.CreateOptions{})
	if err != nil {
		return seen{}, err
	}
	return seenOf(got), nil
}

func (c configMaps) update(ctx context.Context, key string, seq int) (seen, error) {
	object, err := c.client.CoreV1().ConfigMaps(namespace).Get(ctx, key, metav1.GetOptions{})
	if err != nil {
		return seen{}, err
	}
	object.Annotations[seqAnnotation] = strconv.Itoa(seq)
	object.Data["seq"] = strconv.Itoa(seq)
	got, err := c.client.CoreV1().ConfigMaps(namespace).Update(ctx, object, metav1.UpdateOptions{})
	if err != nil {
		return seen{}, err
	}
	return seenOf(got), nil
}

func (c configMaps) remove(ctx context.Context, key string) error {
	return c.client.CoreV1().ConfigMaps(namespace).Delete(ctx, key, metav1.DeleteOptions{})
}

func (c configMaps) get(ctx context.Context, key string) (seen, error) {
	got, err := c.client.CoreV1().ConfigMaps(namespace).Get(ctx, key, metav1.GetOptions{})
	if err != nil {
		return seen{}, err
	}
	return seenOf(got), nil
}

func (c configMaps) list(ctx context.Context) ([]seen, string, error) {
	got, err := c.client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", err
	}
	var all []seen
	for i := range got.Items {
		all = append(all, seenOf(&got.Items[i]))
	}
	return all, got.ResourceVersion, nil
}

// Any other kind through the dynamic client.
type others struct {
	client dynamic.Interface
	what   schema.GroupVersionResource
	kind   string
	in     string
}

func (o others) api() dynamic.ResourceInterface { return o.client.Resource(o.what).Namespace(o.in) }

func (o others) body(key string, seq int) *unstructured.Unstructured {
	object := map[string]any{
		"apiVersion": o.what.GroupVersion().String(),
		"kind":       o.kind,
		"metadata": map[string]any{
			"name":        key,
			"annotations": map[string]any{seqAnnotation: strconv.Itoa(seq)},
		},
	}
	if o.what == widgets {
		object["spec"] = map[string]any{"seq": int64(seq)}
	}
	return &unstructured.Unstructured{Object: object}
}

func (o others) create(ctx context.Context, key string, seq int) (seen, error) {
	got, err := o.api().Create(ctx, o.body(key, seq), metav1.CreateOptions{})
	if err != nil {
		return seen{}, err
	}
	return seenOf(got), nil
}

func (o others) update(ctx context.Context, key string, seq int) (seen, error) {
	object, err := o.api().Get(ctx, key, metav1.GetOptions{})
	if err != nil {
		return seen{}, err
	}
	object.SetAnnotations(map[string]string{seqAnnotation: strconv.Itoa(seq)})
	if o.what == widgets {
		if err := unstructured.SetNestedField(object.Object, int64(seq), "spec", "seq"); err != nil {
			return seen{}, err
		}
	}
	got, err := o.api().Update(ctx, object, metav1.UpdateOptions{})
	if err != nil {
		return seen{}, err
	}
	return seenOf(got), nil
}

func (o others) remove(ctx context.Context, key string) error {
	return o.api().Delete(ctx, key, metav1.DeleteOptions{})
}

func (o others) get(ctx context.Context, key string) (seen, error) {
	got, err := o.api().Get(ctx, key, metav1.GetOptions{})
	if err != nil {
		return seen{}, err
	}
	return seenOf(got), nil
}

func (o others) list(ctx context.Context) ([]seen, string, error) {
	got, err := o.api().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", err
	}
	var all []seen
	for i := range got.Items {
		all = append(all, seenOf(&got.Items[i]))
	}
	return all, got.GetResourceVersion(), nil
}

// The definition of the kind that the reconciler works on.
func widgetDefinition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "widgets.test.karmada-rs.dev"},
		"spec": map[string]any{
			"group": widgets.Group,
			"scope": "Namespaced",
			"names": map[string]any{"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{
						"spec":   map[string]any{"type": "object", "properties": map[string]any{"seq": map[string]any{"type": "integer"}}},
						"status": map[string]any{"type": "object", "properties": map[string]any{"seq": map[string]any{"type": "integer"}}},
					},
				}},
			}},
		},
	}}
}
