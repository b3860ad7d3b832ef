package main

import (
	"reflect"
	"sort"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// metaGroup is the group under which the kinds of meta/v1 are filed: they belong to every group and version.
var metaGroup = schema.GroupVersion{Group: "meta.k8s.io", Version: "v1"}

// served lists the group versions whose kinds are described, in the order in which they are written.
var served = []func(*runtime.Scheme) error{
	corev1.AddToScheme, admissionregistrationv1.AddToScheme, apiextensionsv1.AddToScheme,
	apiregistrationv1.AddToScheme, appsv1.AddToScheme, authenticationv1.AddToScheme,
	authorizationv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme,
	certificatesv1.AddToScheme, coordinationv1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme,
	flowcontrolv1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme,
	rbacv1.AddToScheme, resourcev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme,
}

// metaKinds are the kinds of meta/v1 that travel on the wire.
var metaKinds = []any{
	metav1.Status{}, metav1.APIVersions{}, metav1.APIGroupList{}, metav1.APIGroup{}, metav1.APIResourceList{},
	metav1.PartialObjectMetadata{}, metav1.PartialObjectMetadataList{}, metav1.List{}, metav1.ListOptions{},
	metav1.GetOptions{}, metav1.DeleteOptions{}, metav1.CreateOptions{}, metav1.UpdateOptions{},
	metav1.PatchOptions{}, metav1.WatchEvent{},
}

type kind struct {
	schema.GroupVersionKind
	Type reflect.Type
}

// kinds returns every described kind, sorted by group, version and name.
func kinds() []kind {
	scheme := runtime.NewScheme()
	for _, add := range served {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	meta := reflect.TypeOf(metav1.ObjectMeta{}).PkgPath()
	var out []kind
	for gvk, t := range scheme.AllKnownTypes() {
		// Every group also registers the kinds of meta/v1 and the internal watch event; they are filed once.
		if gvk.Version == runtime.APIVersionInternal || t.PkgPath() == meta {
			continue
		}
		out = append(out, kind{gvk, t})
	}
	for _, object := range metaKinds {
		t := reflect.TypeOf(object)
		out = append(out, kind{metaGroup.WithKind(t.Name()), t})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].String() < out[j].String() })
	return out
}
