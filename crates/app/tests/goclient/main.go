// The client side of a test: informers, watches, a leader election and a reconciler, as programs on Kubernetes are written, on a
// server that is restarted and compacted underneath them. It tells on stdout how far it is, waits for a line on stdin where the
// test has something to do, and ends with code 1 and a list of what was wrong.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

const writersPerResource = 3

func main() {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) > 2 && os.Args[1] == "fleet" {
		return runFleet(os.Args[2:])
	}
	if len(os.Args) != 4 {
		return fmt.Errorf("usage: goclient KUBECONFIG ROUNDS WRITES")
	}
	rounds, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	writes, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		return err
	}
	config.QPS, config.Burst = -1, 0
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	world, err := newWorld(ctx, config)
	if err != nil {
		return err
	}
	orders := bufio.NewScanner(os.Stdin)
	for round := range rounds {
		// The test restarts the server while this goes on.
		fmt.Printf("churning %d\n", round)
		if err := world.churn(ctx, writes); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		fmt.Printf("churned %d\n", round)
		if !orders.Scan() {
			return fmt.Errorf("round %d: nobody tells how to go on", round)
		}
		if err := world.settle(ctx); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		fmt.Printf("settled %d\n", round)
	}
	return world.judge(ctx)
}

// All clients, all that they have noted, and the writers.
type world struct {
	core      kubernetes.Interface
	resources map[string]resource
	ledgers   map[string]*ledger
	writers   []*writer
	followers map[string]*follower
	notebooks map[string]*notebook
	informs   map[string]string // notebook → resource
	election  *election
	resign    map[string]context.CancelFunc
	reconcile *reconciler
}

func newWorld(ctx context.Context, config *rest.Config) (*world, error) {
	typed := rest.CopyConfig(config)
	typed.ContentType = "application/vnd.kubernetes.protobuf"
	core, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, err
	}
	any, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	heads, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{namespace, widgetNamespace} {
		if _, err := core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	if _, err := any.Resource(crds).Create(ctx, widgetDefinition(), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	w := &world{
		core: core,
		resources: map[string]resource{
			"configmaps": configMaps{core},
			"secrets":    others{any, secrets, "Secret", namespace},
			"widgets":    others{any, widgets, "Widget", widgetNamespace},
		},
		ledgers:   map[string]*ledger{},
		followers: map[string]*follower{},
		notebooks: map[string]*notebook{},
		informs:   map[string]string{},
		election:  &election{leading: map[string]bool{}},
		resign:    map[string]context.CancelFunc{},
	}
	err = until(ctx, "the definition is served", func() ([]string, error) {
		_, _, err := w.resources["widgets"].list(ctx)
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	// A server may have put something there itself.
	if err := w.adopt(ctx, "configmaps"); err != nil {
		return nil, err
	}
	seed := int64(1)
	names := []string{"configmaps", "secrets", "widgets"}
	for _, name := range names {
		if w.ledgers[name] == nil {
			w.ledgers[name] = newLedger()
		}
		for i := range writersPerResource {
			w.writers = append(w.writers, newWriter(fmt.Sprintf("w%d", i), w.resources[name], w.ledgers[name], seed))
			seed++
		}
	}

	w.followers["configmaps"] = newFollower("watch of configmaps", w.resources["configmaps"],
		func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return core.CoreV1().ConfigMaps(namespace).Watch(ctx, options)
		})
	w.followers["secrets"] = newFollower("watch of secrets", w.resources["secrets"],
		func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return any.Resource(secrets).Namespace(namespace).Watch(ctx, options)
		})
	for _, follower := range w.followers {
		go follower.run(ctx)
	}

	w.note("typed informer of configmaps", "configmaps")
	w.note("dynamic informer of widgets", "widgets")
	w.note("metadata informer of secrets", "secrets")
	typedFactory := informers.NewSharedInformerFactoryWithOptions(core, 0, informers.WithNamespace(namespace))
	typedFactory.Core().V1().ConfigMaps().Informer().AddEventHandler(handler(w.notebooks["typed informer of configmaps"]))
	typedFactory.Start(ctx.Done())
	dynamicFactory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(any, 0, widgetNamespace, nil)
	dynamicFactory.ForResource(widgets).Informer().AddEventHandler(handler(w.notebooks["dynamic informer of widgets"]))
	dynamicFactory.Start(ctx.Done())
	metadataFactory := metadatainformer.NewFilteredSharedInformerFactory(heads, 0, namespace, nil)
	metadataFactory.ForResource(secrets).Informer().AddEventHandler(handler(w.notebooks["metadata informer of secrets"]))
	metadataFactory.Start(ctx.Done())

	for _, name := range []string{"a", "b", "c"} {
		term, resign := context.WithCancel(ctx)
		w.resign[name] = resign
		go w.election.candidate(term, core, name)
	}
	w.reconcile, err = startReconciler(ctx, config)
	return w, err
}

func (w *world) note(who, what string) {
	w.notebooks[who] = newNotebook(who)
	w.informs[who] = what
}

// adopt takes what exists already into the ledger.
func (w *world) adopt(ctx context.Context, name string) error {
	w.ledgers[name] = newLedger()
	objects, _, err := w.resources[name].list(ctx)
	for _, object := range objects {
		w.ledgers[name].try(object.key, object.seq)
		w.ledgers[name].ack(object.key, object.seq, object.revision)
	}
	return err
}

// churn lets all writers write at once.
func (w *world) churn(ctx context.Context, writes int) error {
	results := make(chan error)
	for _, writer := range w.writers {
		go func() { results <- writer.writes(ctx, writes) }()
	}
	var first error
	for range w.writers {
		if err := <-results; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// settle waits until everybody has seen the last write, with a generous deadline.
func (w *world) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, writer := range w.writers {
		if err := writer.resolve(ctx); err != nil {
			return err
		}
	}
	for name, follower := range w.followers {
		var revision string
		err := until(ctx, "the server answers", func() (_ []string, err error) {
			_, revision, err = w.resources[name].list(ctx)
			return nil, err
		})
		if err != nil {
			return err
		}
		// The list may show a revision of another resource; what counts is the newest write of this one.
		newest := uint64(0)
		for _, writes := range w.ledgers[name].acked {
			for _, at := range writes {
				newest = max(newest, at)
			}
		}
		if err := follower.reach(ctx, min(newest, parseRevision(revision))); err != nil {
			return err
		}
	}
	for who, notebook := range w.notebooks {
		if err := until(ctx, who, func() ([]string, error) {
			return w.ledgers[w.informs[who]].compare(who, notebook.objects()), nil
		}); err != nil {
			return err
		}
	}
	return until(ctx, "the reconciler", func() ([]string, error) { return w.unreconciled(ctx) })
}

// unreconciled lists the Widgets whose status or child is not what it should be, and children without a Widget.
func (w *world) unreconciled(ctx context.Context) ([]string, error) {
	list, err := w.resources["widgets"].(others).api().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	children, err := w.core.CoreV1().ConfigMaps(widgetNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	left := map[string]string{}
	for _, child := range children.Items {
		if len(child.OwnerReferences) > 0 {
			left[child.Name] = child.Data["seq"]
		}
	}
	var wrong []string
	for _, item := range list.Items {
		want, _, _ := unstructured.NestedInt64(item.Object, "spec", "seq")
		have, _, _ := unstructured.NestedInt64(item.Object, "status", "seq")
		if have != want || left[item.GetName()] != strconv.FormatInt(want, 10) {
			wrong = append(wrong, fmt.Sprintf("%s is at %d, its status at %d, its child at %q", item.GetName(), want, have, left[item.GetName()]))
		}
		delete(left, item.GetName())
	}
	for name := range left {
		wrong = append(wrong, "child "+name+" has no Widget any more")
	}
	return wrong, nil
}

// judge looks at everything that was noted.
func (w *world) judge(ctx context.Context) error {
	var wrong []string
	for name, r := range w.resources {
		objects, _, err := r.list(ctx)
		if err != nil {
			return err
		}
		wrong = append(wrong, w.ledgers[name].compare("list of "+name, objects)...)
	}
	for name, follower := range w.followers {
		complaints, epochs, events := follower.check(w.ledgers[name])
		wrong = append(wrong, complaints...)
		fmt.Printf("%s: %d events in %d unbroken watches\n", follower.who, events, epochs)
		if events == 0 {
			wrong = append(wrong, follower.who+": no event at all")
		}
	}
	for who, notebook := range w.notebooks {
		notebook.mu.Lock()
		wrong = append(wrong, notebook.wrong...)
		fmt.Printf("%s: %d events\n", who, notebook.events)
		notebook.mu.Unlock()
	}

	// Whoever is asked to go is followed by somebody else.
	for range 2 {
		var leader string
		if err := until(ctx, "somebody leads", func() ([]string, error) {
			if leader = w.election.leader(); leader == "" {
				return []string{"nobody"}, nil
			}
			return nil, nil
		}); err != nil {
			return err
		}
		w.resign[leader]()
		if err := until(ctx, "somebody else leads", func() ([]string, error) {
			if next := w.election.leader(); next == "" || next == leader {
				return []string{"still " + next}, nil
			}
			return nil, nil
		}); err != nil {
			return err
		}
	}
	w.election.mu.Lock()
	wrong = append(wrong, w.election.wrong...)
	fmt.Printf("leader election: terms of %v\n", w.election.terms)
	w.election.mu.Unlock()

	// Nothing is left to do, so nothing is written any more: the revision that a list shows is that of the newest write to the store.
	fmt.Printf("reconciler: %d writes\n", w.reconcile.writes.Load())
	sort.Strings(wrong)
	if len(wrong) > 0 {
		for i, line := range wrong {
			if i == 40 {
				fmt.Fprintf(os.Stderr, "and %d more\n", len(wrong)-i)
				break
			}
			fmt.Fprintln(os.Stderr, line)
		}
		return fmt.Errorf("%d promises were broken", len(wrong))
	}
	fmt.Println("all promises held")
	return nil
}
