package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// fleetFollowers are programs of other kinds on the fleet: a manager of controller-runtime with a reconciler, and what terminals for
// Kubernetes do: they ask what there is and what they may, follow untyped objects and metadata, and list and watch tables.
type fleetFollowers struct {
	client client.Client
	notes  *fleetNotes
	rows   *tableScreen
	// Of the untyped informer and of the one of metadata.
	stores []cache.Store
	mu     sync.Mutex
	// What the last turn of the reconciler saw, by name.
	reconciled map[string]int
}

func startFleetFollowers(ctx context.Context, config *rest.Config) (*fleetFollowers, error) {
	// What there is to be shown is asked first, kind by kind.
	discovered, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := discovered.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("discovery through the fleet: %w", err)
	}
	kinds := map[string]bool{}
	for _, list := range lists {
		for _, resource := range list.APIResources {
			kinds[list.GroupVersion+"/"+resource.Name] = true
		}
	}
	for _, kind := range []string{"v1/pods", "v1/nodes", "apps/v1/deployments"} {
		if !kinds[kind] {
			return nil, fmt.Errorf("discovery through the fleet does not name %s", kind)
		}
	}
	asking, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if _, err := discovered.ServerVersion(); err != nil {
		return nil, fmt.Errorf("the version through the fleet: %w", err)
	}
	// A screen offers what its user may do.
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "configmaps", Namespace: churned},
	}}
	review, err = asking.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil || !review.Status.Allowed {
		return nil, fmt.Errorf("what one may do through the fleet: %v %w", review, err)
	}
	f := &fleetFollowers{notes: newFleetNotes(), reconciled: map[string]int{}}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: server.Options{BindAddress: "0"},
		Cache:   crcache.Options{DefaultNamespaces: map[string]crcache.Config{churned: {}}},
	})
	if err != nil {
		return nil, err
	}
	f.client = manager.GetClient()
	if err := ctrl.NewControllerManagedBy(manager).For(&corev1.ConfigMap{}).Complete(f); err != nil {
		return nil, err
	}
	go func() {
		if err := manager.Start(ctx); err != nil && ctx.Err() == nil {
			panic(fmt.Sprintf("the manager ended: %v", err))
		}
	}()
	if !manager.GetCache().WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("the cache of controller-runtime is not filled")
	}
	informer, err := manager.GetCache().GetInformer(ctx, &corev1.ConfigMap{})
	if err != nil {
		return nil, err
	}
	if _, err := informer.AddEventHandler(f.notes.handler()); err != nil {
		return nil, err
	}
	f.rows = &tableScreen{rows: map[string]bool{}}
	plain := rest.CopyConfig(config)
	plain.ContentType, plain.AcceptContentTypes = "application/json", ""
	typed, err := kubernetes.NewForConfig(plain)
	if err != nil {
		return nil, err
	}
	go f.rows.follow(ctx, typed.CoreV1().RESTClient())
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	untyped, err := dynamic.NewForConfig(plain)
	if err != nil {
		return nil, err
	}
	all := dynamicinformer.NewFilteredDynamicSharedInformerFactory(untyped, 0, churned, nil)
	f.stores = append(f.stores, all.ForResource(maps).Informer().GetStore())
	all.Start(ctx.Done())
	heads, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	partial := metadatainformer.NewFilteredSharedInformerFactory(heads, 0, churned, nil)
	f.stores = append(f.stores, partial.ForResource(maps).Informer().GetStore())
	partial.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
	partial.WaitForCacheSync(ctx.Done())
	return f, nil
}

// Reconcile notes what is there when it is asked to look.
func (f *fleetFollowers) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := &corev1.ConfigMap{}
	err := f.client.Get(ctx, request.NamespacedName, object)
	f.mu.Lock()
	defer f.mu.Unlock()
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if err != nil {
		delete(f.reconciled, request.Name)
	} else {
		f.reconciled[request.Name] = valueOf(object)
	}
	return ctrl.Result{}, nil
}

// differences tells where one of them does not know what the members have.
func (f *fleetFollowers) differences(ctx context.Context, want map[string]int) []string {
	var list corev1.ConfigMapList
	if err := f.client.List(ctx, &list, client.InNamespace(churned)); err != nil {
		return []string{err.Error()}
	}
	got := map[string]int{}
	var wrong []string
	f.mu.Lock()
	for index := range list.Items {
		object := &list.Items[index]
		put(got, object)
		seen, ok := f.reconciled[object.Name]
		if !ok || seen != valueOf(object) {
			wrong = append(wrong, fmt.Sprintf("%s is %d, and the reconciler saw %d", object.Name, valueOf(object), seen))
		}
	}
	if len(f.reconciled) != len(list.Items) {
		wrong = append(wrong, fmt.Sprintf("the reconciler knows %d objects of %d", len(f.reconciled), len(list.Items)))
	}
	f.mu.Unlock()
	wrong = append(wrong, difference(want, got)...)
	for _, store := range f.stores {
		known := map[string]bool{}
		for _, object := range store.List() {
			if accessor, err := meta.Accessor(object); err == nil && strings.HasPrefix(accessor.GetName(), "m") {
				known[string(accessor.GetUID())] = true
			}
		}
		wrong = append(wrong, sameKeys(want, known)...)
	}
	return append(wrong, f.rows.differences(want)...)
}

// tableScreen shows rows, which are listed once and then watched, and listed again when the watch says so.
type tableScreen struct {
	mu   sync.Mutex
	rows map[string]bool // by UID
	told int
}

const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

func (t *tableScreen) follow(ctx context.Context, door rest.Interface) {
	for ctx.Err() == nil {
		version, err := t.list(ctx, door)
		for err == nil && ctx.Err() == nil {
			version, err = t.watch(ctx, door, version)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (t *tableScreen) request(door rest.Interface) *rest.Request {
	return door.Get().Namespace(churned).Resource("configmaps").SetHeader("Accept", asTable).
		Param("includeObject", "Object")
}

func (t *tableScreen) list(ctx context.Context, door rest.Interface) (string, error) {
	text, err := t.request(door).DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var table metav1.Table
	if err := json.Unmarshal(text, &table); err != nil {
		return "", err
	}
	rows := map[string]bool{}
	for _, row := range table.Rows {
		if uid := rowUID(row); uid != "" {
			rows[uid] = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = rows
	return table.ResourceVersion, nil
}

// watch follows until the watch ends; returns where to go on, or an error if everything has to be listed.
func (t *tableScreen) watch(ctx context.Context, door rest.Interface, version string) (string, error) {
	body, err := t.request(door).Param("watch", "true").Param("resourceVersion", version).
		Param("timeoutSeconds", strconv.Itoa(60)).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var event struct {
			Type   string
			Object json.RawMessage
		}
		if err := decoder.Decode(&event); err != nil {
			return version, nil
		}
		if event.Type == "ERROR" {
			return "", fmt.Errorf("the watch was refused: %s", event.Object)
		}
		var table metav1.Table
		if err := json.Unmarshal(event.Object, &table); err != nil {
			return "", err
		}
		t.mu.Lock()
		for _, row := range table.Rows {
			t.told++
			uid := rowUID(row)
			if uid == "" {
				continue
			}
			if event.Type == "DELETED" {
				delete(t.rows, uid)
			} else {
				t.rows[uid] = true
			}
		}
		t.mu.Unlock()
		if rows := table.Rows; len(rows) > 0 {
			var partial metav1.PartialObjectMetadata
			if err := json.Unmarshal(rows[0].Object.Raw, &partial); err == nil && partial.ResourceVersion != "" {
				version = partial.ResourceVersion
			}
		}
	}
}

func rowUID(row metav1.TableRow) string {
	var partial metav1.PartialObjectMetadata
	if err := json.Unmarshal(row.Object.Raw, &partial); err != nil || len(partial.Name) == 0 || partial.Name[0] != 'm' {
		return ""
	}
	return string(partial.UID)
}

func (t *tableScreen) differences(want map[string]int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return sameKeys(want, t.rows)
}

func sameKeys(want map[string]int, known map[string]bool) []string {
	var wrong []string
	for uid := range want {
		if !known[uid] {
			wrong = append(wrong, uid+" is not shown")
		}
	}
	for uid := range known {
		if _, ok := want[uid]; !ok {
			wrong = append(wrong, uid+" is shown and not there")
		}
	}
	return wrong
}
