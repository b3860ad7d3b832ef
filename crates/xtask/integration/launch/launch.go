// Package launch starts the server under test as a process of its own and says how to reach it.
//
// In: which data to start from and which options a test wants. Out: a client configuration and a way to end it. The
// program is named by the variable APISERVER_PROGRAM. Data of the same name is found again by the next start in the same
// test, as it would be in a database.
package launch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Token is what the configuration authenticates with. Tests put another token into a copy of the configuration to be
// somebody else, so it must not hold a certificate.
const Token = "karmada-rs-integration-token"

const startDeadline = 60 * time.Second

// Options is what a test asks for.
type Options struct {
	// Data names the data; empty for a fresh start.
	Data string
	// TokenFile holds further tokens.
	TokenFile string
	// Arguments are handed to the program as they are.
	Arguments []string
}

// Server is a running server.
type Server struct {
	Config *rest.Config
	// Dir is where the server keeps its data and keys.
	Dir string
	// Stop ends it and waits for that.
	Stop func()
}

var kept = struct {
	sync.Mutex
	dirs map[string]string
}{dirs: map[string]string{}}

// Test is what a server needs of the test that it is started for.
type Test interface {
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
}

// Start runs a server until its Stop is called.
func Start(t Test, options Options) (*Server, error) {
	program := os.Getenv("APISERVER_PROGRAM")
	if program == "" {
		return nil, errors.New("APISERVER_PROGRAM does not say which server to start")
	}
	dir, err := folder(t, options.Data)
	if err != nil {
		return nil, err
	}
	tokens, err := tokenFile(dir, options.TokenFile)
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "data", "alone.kubeconfig")
	// One of an earlier start has another port.
	if err := os.RemoveAll(kubeconfig); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	arguments := append([]string{filepath.Join(dir, "data"), "--token-auth-file=" + tokens}, options.Arguments...)
	if filepath.Base(os.Args[0]) == "garbagecollector.test" {
		// Elsewhere objects name owners that do not exist. Here upstream's collector runs beside ours.
		arguments = append(arguments, "--collect-garbage=true")
	}
	command := exec.Command(program, arguments...)
	command.Stdout, command.Stderr = log, log
	// Should the test be killed, the server must not stay behind.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	started := false
	stop := sync.OnceFunc(func() {
		if started {
			running.Lock()
			running.count--
			running.Unlock()
		}
		_ = command.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = command.Process.Kill()
			<-ended
		}
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && len(text) > 0 && t.Failed() {
			t.Logf("the server said:\n%s", text)
		}
	})
	config, err := await(kubeconfig, ended)
	if err != nil {
		stop()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w; the server said:\n%s", err, text)
	}
	server := &Server{Config: config, Dir: filepath.Join(dir, "data"), Stop: stop}
	started = true
	if err := server.goAhead(); err != nil {
		stop()
		return nil, err
	}
	return server, nil
}

// goAhead makes the revisions of a server larger than those of the ones that run beside it: upstream they count together,
// since they share an etcd, and some tests take a revision from one server to another.
func (s *Server) goAhead() error {
	running.Lock()
	defer running.Unlock()
	others := running.count
	running.count++
	for i := 0; i < 50*others; i++ {
		object := fmt.Sprintf(`{"metadata": {"name": "ahead"}, "data": {"step": "%d"}}`, i)
		path := "/api/v1/namespaces/kube-public/configmaps"
		if _, err := s.ask(http.MethodPost, path, []byte(object)); err != nil {
			return err
		}
		if _, err := s.ask(http.MethodDelete, path+"/ahead", nil); err != nil {
			return err
		}
	}
	return nil
}

var running struct {
	sync.Mutex
	count int
}

func folder(t Test, name string) (string, error) {
	kept.Lock()
	defer kept.Unlock()
	if dir, found := kept.dirs[name]; found && name != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp("", "karmada-rs-integration-")
	if err != nil {
		return "", err
	}
	if name != "" {
		kept.dirs[name] = dir
	}
	t.Cleanup(func() {
		_ = os.RemoveAll(dir)
		kept.Lock()
		defer kept.Unlock()
		delete(kept.dirs, name)
	})
	return dir, nil
}

func tokenFile(dir, further string) (string, error) {
	text := Token + ",system:apiserver,7f2d6c0e-3f0b-4c55-9a38-6d0f2f6a1c11,\"system:masters\"\n"
	if further != "" {
		more, err := os.ReadFile(further)
		if err != nil {
			return "", err
		}
		text += string(more)
	}
	path := filepath.Join(dir, "tokens.csv")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// await returns the configuration as soon as the server says that it is ready.
func await(kubeconfig string, ended chan error) (*rest.Config, error) {
	deadline := time.Now().Add(startDeadline)
	for time.Now().Before(deadline) {
		select {
		case err := <-ended:
			ended <- err
			return nil, fmt.Errorf("the server ended at once: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		admin, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			continue
		}
		config := rest.AnonymousClientConfig(admin)
		config.BearerToken = Token
		config.QPS, config.Burst = 1000, 10000
		if ready(config) {
			return config, nil
		}
	}
	return nil, errors.New("the server was not ready in time")
}

func ready(config *rest.Config) bool {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return false
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return false
	}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
