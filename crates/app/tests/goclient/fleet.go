package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	churned     = "churned"
	fromCluster = "resource.karmada.io/cached-from-cluster"
)

// runFleet has informers follow the ConfigMaps of all members through the control plane's door to the fleet, while they are
// written in the members themselves, and servers are restarted. What an informer tells must never go back, come twice, or go
// without having been deleted, and in the end it must be what the members have.
func runFleet(arguments []string) error {
	if len(arguments) < 4 {
		return fmt.Errorf("usage: goclient fleet KUBECONFIG ROUNDS WRITES MEMBER…")
	}
	rounds, err := strconv.Atoi(arguments[1])
	if err != nil {
		return err
	}
	writes, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", arguments[0])
	if err != nil {
		return err
	}
	config.Host += "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.QPS, config.Burst = -1, 0
	fleet, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var members []*fleetWriter
	for index, path := range arguments[3:] {
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			return err
		}
		config.QPS, config.Burst = -1, 0
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: churned}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
			return err
		}
		members = append(members, &fleetWriter{client: client, index: index, deleted: map[string]bool{}})
	}
	notes := newFleetNotes()
	factory := informers.NewSharedInformerFactoryWithOptions(fleet, 0, informers.WithNamespace(churned))
	informer := factory.Core().V1().ConfigMaps().Informer()
	_, err = informer.AddEventHandler(notes.handler())
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	followers, err := startFleetFollowers(ctx, config)
	if err != nil {
		return err
	}
	orders := bufio.NewScanner(os.Stdin)
	for round := range rounds {
		fmt.Printf("churning %d\n", round)
		var all sync.WaitGroup
		for _, member := range members {
			all.Add(1)
			go func() {
				defer all.Done()
				member.churn(ctx, round, writes)
			}()
		}
		all.Wait()
		fmt.Printf("churned %d\n", round)
		if !orders.Scan() {
			return fmt.Errorf("round %d: nobody tells how to go on", round)
		}
		err := until(ctx, "the informer knows what the members have", func() ([]string, error) {
			want := map[string]int{}
			for _, member := range members {
				if err := member.list(ctx, want); err != nil {
					return nil, err
				}
			}
			got := map[string]int{}
			for _, object := range informer.GetStore().List() {
				put(got, object.(*corev1.ConfigMap))
			}
			return append(difference(want, got), followers.differences(ctx, want)...), nil
		})
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		fmt.Printf("settled %d\n", round)
	}
	wrong := append(notes.judge(members), followers.notes.judge(members)...)
	if len(wrong) > 0 {
		return fmt.Errorf("%d things are wrong:\n%s", len(wrong), strings.Join(wrong[:min(len(wrong), 20)], "\n"))
	}
	fmt.Printf("%d events of client-go, %d of controller-runtime, %d rows\nall promises held\n", notes.events, followers.notes.events, followers.rows.told)
	return nil
}

type fleetWriter struct {
	client  kubernetes.Interface
	index   int
	deleted map[string]bool // by UID
}

// churn creates, changes and deletes. What fails because the member is being restarted is tried again.
func (w *fleetWriter) churn(ctx context.Context, round, writes int) {
	maps := w.client.CoreV1().ConfigMaps(churned)
	for number := range writes {
		name := fmt.Sprintf("m%d-%d", w.index, number%20)
		value := round*1000000 + number
		for ctx.Err() == nil {
			object, err := maps.Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"n": strconv.Itoa(value)}}
				_, err = maps.Create(ctx, made, metav1.CreateOptions{})
			case err == nil && number%7 == 3:
				// Noted before: the answer may be lost.
				w.deleted[string(object.UID)] = true
				err = maps.Delete(ctx, name, metav1.DeleteOptions{})
			case err == nil:
				object.Data["n"] = strconv.Itoa(value)
				_, err = maps.Update(ctx, object, metav1.UpdateOptions{})
			}
			if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
				break
			}
			pause(ctx)
		}
	}
}

func (w *fleetWriter) list(ctx context.Context, into map[string]int) error {
	list, err := w.client.CoreV1().ConfigMaps(churned).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for index := range list.Items {
		put(into, &list.Items[index])
	}
	return nil
}

// fleetNotes is what an informer has told.
type fleetNotes struct {
	mu     sync.Mutex
	last   map[string]int  // the newest value, by UID
	there  map[string]bool // by UID
	went   []string
	wrong  []string
	events int
}

func newFleetNotes() *fleetNotes {
	return &fleetNotes{last: map[string]int{}, there: map[string]bool{}}
}

// handler notes what an informer tells.
func (n *fleetNotes) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.seen(object.(*corev1.ConfigMap), true) },
		UpdateFunc: func(_, object any) { n.seen(object.(*corev1.ConfigMap), false) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			n.gone(object.(*corev1.ConfigMap))
		},
	}
}

func (n *fleetNotes) seen(object *corev1.ConfigMap, added bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events++
	uid, value := string(object.UID), valueOf(object)
	if added && n.there[uid] {
		n.wrong = append(n.wrong, fmt.Sprintf("%s was added twice", object.Name))
	}
	if !added && !n.there[uid] {
		// An informer tells of a successor as of a change.
		n.there[uid] = true
	}
	if value < n.last[uid] {
		n.wrong = append(n.wrong, fmt.Sprintf("%s went back from %d to %d", object.Name, n.last[uid], value))
	}
	if object.Annotations[fromCluster] == "" && object.Name != "kube-root-ca.crt" {
		n.wrong = append(n.wrong, fmt.Sprintf("%s does not say its cluster", object.Name))
	}
	n.there[uid], n.last[uid] = true, value
}

func (n *fleetNotes) gone(object *corev1.ConfigMap) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events++
	if !n.there[string(object.UID)] {
		n.wrong = append(n.wrong, fmt.Sprintf("%s went without having been there", object.Name))
	}
	delete(n.there, string(object.UID))
	n.went = append(n.went, string(object.UID))
}

func (n *fleetNotes) judge(members []*fleetWriter) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	wrong := n.wrong
	for _, uid := range n.went {
		deleted := false
		for _, member := range members {
			deleted = deleted || member.deleted[uid]
		}
		if !deleted {
			wrong = append(wrong, fmt.Sprintf("%s went and nobody had deleted it", uid))
		}
	}
	return wrong
}

func valueOf(object *corev1.ConfigMap) int {
	value, err := strconv.Atoi(object.Data["n"])
	if err != nil {
		return 0
	}
	return value
}

// put notes an object under its UID. What a server makes by itself does not count.
func put(into map[string]int, object *corev1.ConfigMap) {
	if strings.HasPrefix(object.Name, "m") {
		into[string(object.UID)] = valueOf(object)
	}
}

func difference(want, got map[string]int) []string {
	var all []string
	for uid, value := range want {
		if found, ok := got[uid]; !ok || found != value {
			all = append(all, fmt.Sprintf("%s is %d and %d is known", uid, value, found))
		}
	}
	for uid := range got {
		if _, ok := want[uid]; !ok {
			all = append(all, uid+" is known and not there")
		}
	}
	sort.Strings(all)
	return all
}
