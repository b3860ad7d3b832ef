// Decides situations of FederatedHPAs with the original's controller: one JSON case per line on stdin, one JSON answer per line on
// stdout. `cargo xtask compare autoscaling` builds it and compares its answers with ours.
//
// The whole reconcile of the original runs, on a control plane and members in memory. Times are given as ages in seconds.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"
	"unsafe"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	scalefake "k8s.io/client-go/scale/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	autoscalingv1alpha1 "github.com/karmada-io/karmada/pkg/apis/autoscaling/v1alpha1"
	clusterv1alpha1 "github.com/karmada-io/karmada/pkg/apis/cluster/v1alpha1"
	policyv1alpha1 "github.com/karmada-io/karmada/pkg/apis/policy/v1alpha1"
	workv1alpha2 "github.com/karmada-io/karmada/pkg/apis/work/v1alpha2"
	"github.com/karmada-io/karmada/pkg/controllers/federatedhpa"
	"github.com/karmada-io/karmada/pkg/controllers/federatedhpa/metrics"
	"github.com/karmada-io/karmada/pkg/controllers/federatedhpa/monitor"
	"github.com/karmada-io/karmada/pkg/util"
	"github.com/karmada-io/karmada/pkg/util/fedinformer/typedmanager"
	"github.com/karmada-io/karmada/pkg/util/gclient"
	"github.com/karmada-io/karmada/pkg/util/lifted/selectors"
)

const space = "n"

type change struct {
	Replicas int32   `json:"replicas"`
	Ago      float64 `json:"ago"`
}

type container struct {
	Name     string            `json:"name"`
	Requests map[string]string `json:"requests"`
}

type pod struct {
	Name       string      `json:"name"`
	Phase      string      `json:"phase"`
	Deleting   bool        `json:"deleting"`
	Ready      string      `json:"ready"`
	ReadyAgo   float64     `json:"readyAgo"`
	StartedAgo *float64    `json:"startedAgo"`
	Containers []container `json:"containers"`
}

type cluster struct {
	Name    string `json:"name"`
	Wanted  int32  `json:"wanted"`
	Running int32  `json:"running"`
	Pods    []pod  `json:"pods"`
}

type sample struct {
	Value  int64   `json:"value"`
	Ago    float64 `json:"ago"`
	Window float64 `json:"window"`
}

type measured struct {
	Pods  map[string]sample `json:"pods,omitempty"`
	Value *int64            `json:"value,omitempty"`
	Error string            `json:"error,omitempty"`
}

type situation struct {
	Spec            autoscalingv1alpha1.FederatedHPASpec `json:"spec"`
	Replicas        int32                                `json:"replicas"`
	Clusters        []cluster                            `json:"clusters"`
	Measured        []measured                           `json:"measured"`
	Recommendations []change                             `json:"recommendations"`
	Ups             []change                             `json:"ups"`
	Downs           []change                             `json:"downs"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type answer struct {
	Replicas   int32                        `json:"replicas"`
	Desired    int32                        `json:"desired"`
	Metrics    []autoscalingv2.MetricStatus `json:"metrics"`
	Conditions []condition                  `json:"conditions"`
	Events     []string                     `json:"events"`
	Error      string                       `json:"error"`
}

// source answers questions for metrics from the case.
type source struct {
	situation *situation
	now       time.Time
}

func (s source) find(fits func(autoscalingv2.MetricSpec) bool) (*measured, error) {
	for i, spec := range s.situation.Spec.Metrics {
		if fits(spec) {
			found := &s.situation.Measured[i]
			if found.Error != "" {
				return nil, errors.New(found.Error)
			}
			return found, nil
		}
	}
	return nil, errors.New("nobody asks for this")
}

func (s source) pods(found *measured) metrics.PodMetricsInfo {
	info := metrics.PodMetricsInfo{}
	for name, sample := range found.Pods {
		info[name] = metrics.PodMetric{
			Timestamp: s.now.Add(-seconds(sample.Ago)),
			Window:    seconds(sample.Window),
			Value:     sample.Value,
		}
	}
	return info
}

func (s source) GetResourceMetric(_ context.Context, name corev1.ResourceName, _ string, _ labels.Selector, container string) (metrics.PodMetricsInfo, time.Time, error) {
	found, err := s.find(func(spec autoscalingv2.MetricSpec) bool {
		if container != "" {
			return spec.ContainerResource != nil && spec.ContainerResource.Name == name && spec.ContainerResource.Container == container
		}
		return spec.Resource != nil && spec.Resource.Name == name
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	return s.pods(found), s.now, nil
}

func (s source) GetRawMetric(name string, _ string, _ labels.Selector, _ labels.Selector) (metrics.PodMetricsInfo, time.Time, error) {
	found, err := s.find(func(spec autoscalingv2.MetricSpec) bool { return spec.Pods != nil && spec.Pods.Metric.Name == name })
	if err != nil {
		return nil, time.Time{}, err
	}
	return s.pods(found), s.now, nil
}

func (s source) GetObjectMetric(name string, _ string, _ *autoscalingv2.CrossVersionObjectReference, _ labels.Selector) (int64, time.Time, error) {
	found, err := s.find(func(spec autoscalingv2.MetricSpec) bool { return spec.Object != nil && spec.Object.Metric.Name == name })
	if err != nil {
		return 0, time.Time{}, err
	}
	return *found.Value, s.now, nil
}

func (s source) GetExternalMetric(string, string, labels.Selector) ([]int64, time.Time, error) {
	return nil, time.Time{}, errors.New("the original asks for no external metrics")
}

func seconds(value float64) time.Duration {
	return time.Duration(value * float64(time.Second))
}

// reach makes a private field of the controller writable.
func reach(controller *federatedhpa.FHPAController, name string) reflect.Value {
	field := reflect.ValueOf(controller).Elem().FieldByName(name)
	return reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem()
}

// remember puts changes into one of the controller's memories.
func remember(controller *federatedhpa.FHPAController, name, number string, changes []change, now time.Time) {
	memory := reach(controller, name)
	memory.Set(reflect.MakeMap(memory.Type()))
	if changes == nil {
		return
	}
	list := reflect.MakeSlice(memory.Type().Elem(), len(changes), len(changes))
	for i, one := range changes {
		set := func(field string, value any) {
			place := list.Index(i).FieldByName(field)
			reflect.NewAt(place.Type(), unsafe.Pointer(place.UnsafeAddr())).Elem().Set(reflect.ValueOf(value))
		}
		set(number, one.Replicas)
		set("timestamp", now.Add(-seconds(one.Ago)))
	}
	memory.SetMapIndex(reflect.ValueOf(space+"/h"), list)
}

func podOf(given pod, now time.Time) *corev1.Pod {
	made := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: given.Name, Namespace: space, Labels: map[string]string{"app": "web"}}}
	if given.Deleting {
		made.DeletionTimestamp = &metav1.Time{Time: now}
		made.Finalizers = []string{"a/b"}
	}
	made.Status.Phase = corev1.PodPhase(given.Phase)
	if given.Ready != "" {
		made.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionStatus(given.Ready),
			LastTransitionTime: metav1.Time{Time: now.Add(-seconds(given.ReadyAgo))},
		}}
	}
	if given.StartedAgo != nil {
		made.Status.StartTime = &metav1.Time{Time: now.Add(-seconds(*given.StartedAgo))}
	}
	for _, one := range given.Containers {
		requests := corev1.ResourceList{}
		for name, amount := range one.Requests {
			requests[corev1.ResourceName(name)] = resource.MustParse(amount)
		}
		made.Spec.Containers = append(made.Spec.Containers, corev1.Container{Name: one.Name, Resources: corev1.ResourceRequirements{Requests: requests}})
	}
	return made
}

func decide(given *situation) (*answer, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	now := time.Now()
	deployment := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: space, Labels: map[string]string{policyv1alpha1.PropagationPolicyPermanentIDLabel: "id"}},
		Spec:       appsv1.DeploymentSpec{Replicas: &given.Replicas},
	}
	binding := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "web-deployment", Namespace: space, Labels: map[string]string{policyv1alpha1.PropagationPolicyPermanentIDLabel: "id"}},
		Spec:       workv1alpha2.ResourceBindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: space, Name: "web"}},
	}
	scaler := &autoscalingv1alpha1.FederatedHPA{ObjectMeta: metav1.ObjectMeta{Name: "h", Namespace: space}, Spec: given.Spec}
	objects := []client.Object{deployment, binding, scaler}
	informers := typedmanager.NewMultiClusterInformerManager(ctx, nil)
	scales := map[string]*scalefake.FakeScaleClient{}
	for _, one := range given.Clusters {
		binding.Spec.Clusters = append(binding.Spec.Clusters, workv1alpha2.TargetCluster{Name: one.Name})
		objects = append(objects, &clusterv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: one.Name},
			Status:     clusterv1alpha1.ClusterStatus{Conditions: []metav1.Condition{{Type: clusterv1alpha1.ClusterConditionReady, Status: metav1.ConditionTrue}}},
		})
		var pods []runtime.Object
		for _, of := range one.Pods {
			pods = append(pods, podOf(of, now))
		}
		informers.ForCluster(one.Name, kubefake.NewSimpleClientset(pods...), 0)
		scale := &autoscalingv1.Scale{
			Spec:   autoscalingv1.ScaleSpec{Replicas: one.Wanted},
			Status: autoscalingv1.ScaleStatus{Replicas: one.Running, Selector: "app=web"},
		}
		scales[one.Name] = &scalefake.FakeScaleClient{}
		scales[one.Name].AddReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, scale, nil
		})
	}
	replicas := given.Replicas
	plane := fake.NewClientBuilder().WithScheme(gclient.NewSchema()).WithObjects(objects...).
		WithStatusSubresource(scaler).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceGet: func(_ context.Context, _ client.Client, _ string, _ client.Object, into client.Object, _ ...client.SubResourceGetOption) error {
			into.(*unstructured.Unstructured).Object = map[string]any{
				"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": map[string]any{"name": "web", "namespace": space},
				"spec": map[string]any{"replicas": int64(replicas)}, "status": map[string]any{"replicas": int64(replicas)},
			}
			return nil
		},
		SubResourceUpdate: func(ctx context.Context, below client.Client, name string, object client.Object, options ...client.SubResourceUpdateOption) error {
			if name != "scale" {
				return below.SubResource(name).Update(ctx, object, options...)
			}
			all := client.SubResourceUpdateOptions{}
			all.ApplyOptions(options)
			wanted, _, err := unstructured.NestedInt64(all.SubResourceBody.(*unstructured.Unstructured).Object, "spec", "replicas")
			replicas = int32(wanted)
			return err
		},
	}).Build()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	recorder := record.NewFakeRecorder(100)
	controller := &federatedhpa.FHPAController{
		Client:      plane,
		ReplicaCalc: federatedhpa.NewReplicaCalculator(source{given, now}, 0.1, 5*time.Minute, 30*time.Second),
		ClusterScaleClientSetFunc: func(name string, _ client.Client) (*util.ClusterScaleClient, error) {
			return &util.ClusterScaleClient{ClusterName: name, ScaleClient: scales[name]}, nil
		},
		RESTMapper:                        mapper,
		EventRecorder:                     recorder,
		TypedInformerManager:              informers,
		ClusterCacheSyncTimeout:           metav1.Duration{Duration: 10 * time.Second},
		HorizontalPodAutoscalerSyncPeriod: 15 * time.Second,
		DownscaleStabilisationWindow:      5 * time.Minute,
	}
	remember(controller, "recommendations", "recommendation", given.Recommendations, now)
	remember(controller, "scaleUpEvents", "replicaChange", given.Ups, now)
	remember(controller, "scaleDownEvents", "replicaChange", given.Downs, now)
	reach(controller, "hpaSelectors").Set(reflect.ValueOf(selectors.NewBiMultimap()))
	reach(controller, "monitor").Set(reflect.ValueOf(theMonitor))
	key := types.NamespacedName{Namespace: space, Name: "h"}
	_, failed := controller.Reconcile(ctx, controllerruntime.Request{NamespacedName: key})
	after := &autoscalingv1alpha1.FederatedHPA{}
	if err := plane.Get(ctx, key, after); err != nil {
		return nil, err
	}
	made := &answer{Replicas: replicas, Desired: after.Status.DesiredReplicas, Metrics: after.Status.CurrentMetrics, Events: []string{}}
	for _, one := range after.Status.Conditions {
		made.Conditions = append(made.Conditions, condition{string(one.Type), string(one.Status), one.Reason, one.Message})
	}
	if failed != nil {
		made.Error = failed.Error()
	}
	close(recorder.Events)
	for event := range recorder.Events {
		made.Events = append(made.Events, strings.SplitN(event, " ", 3)[1])
	}
	return made, nil
}

var theMonitor = monitor.New()

func main() {
	in, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		given := &situation{}
		if err := json.Unmarshal(in.Bytes(), given); err != nil {
			fmt.Fprintln(os.Stderr, "cannot read a case:", err)
			os.Exit(1)
		}
		made, err := decide(given)
		if err != nil {
			fmt.Fprintln(os.Stderr, "cannot decide a case:", err)
			os.Exit(1)
		}
		line, _ := json.Marshal(made)
		out.Write(append(line, '\n'))
		out.Flush()
	}
}
