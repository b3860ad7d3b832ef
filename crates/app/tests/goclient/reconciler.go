package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// A reconciler of the usual kind: for every Widget a ConfigMap that it owns, and a status that tells how far it is.
type reconciler struct {
	client.Client
	writes atomic.Int64
}

func widget() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(widgets.GroupVersion().String())
	object.SetKind("Widget")
	return object
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := widget()
	if err := r.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if object.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, nil
	}
	want, _, err := unstructured.NestedInt64(object.Object, "spec", "seq")
	if err != nil {
		return ctrl.Result{}, err
	}
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: object.GetName(), Namespace: object.GetNamespace()}}
	result, err := controllerutil.CreateOrUpdate(ctx, r.Client, child, func() error {
		child.Data = map[string]string{"seq": strconv.FormatInt(want, 10)}
		return controllerutil.SetControllerReference(object, child, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if result != controllerutil.OperationResultNone {
		r.writes.Add(1)
	}
	if have, found, _ := unstructured.NestedInt64(object.Object, "status", "seq"); !found || have != want {
		if err := unstructured.SetNestedField(object.Object, want, "status", "seq"); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.Status().Update(ctx, object); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		r.writes.Add(1)
	}
	return ctrl.Result{}, nil
}

// startReconciler runs the manager until the context ends.
func startReconciler(ctx context.Context, config *rest.Config) (*reconciler, error) {
	manager, err := ctrl.NewManager(config, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return nil, err
	}
	r := &reconciler{Client: manager.GetClient()}
	if err := ctrl.NewControllerManagedBy(manager).For(widget()).Owns(&corev1.ConfigMap{}).Complete(r); err != nil {
		return nil, err
	}
	go func() {
		if err := manager.Start(ctx); err != nil && ctx.Err() == nil {
			panic(fmt.Sprintf("the manager ended: %v", err))
		}
	}()
	return r, nil
}
