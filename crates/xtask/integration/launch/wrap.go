package launch

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/rest"
)

// LendNamespaces makes namespaces that a test writes into without creating them: our server always checks that they
// exist. Should the test create such a namespace later, it is told that it did.
func (s *Server) LendNamespaces() {
	lender := &lender{server: s, lent: map[string]bool{}}
	s.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			return lender.send(next, request)
		})
	})
}

// AllowAll gives everybody every right.
func (s *Server) AllowAll() {
	_, _ = s.ask(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", []byte(`{
		"metadata": {"name": "always-allow"},
		"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": [
			{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"},
			{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}
		]}`))
}

// Identify lets an authenticator of the test find out who asks. Whom it knows is named to our server as a front proxy
// does it; other requests are sent as they are.
func (s *Server) Identify(who authenticator.Request) error {
	proxy := rest.AnonymousClientConfig(s.Config)
	proxy.CertFile = filepath.Join(s.Dir, "pki", "front-proxy-client.crt")
	proxy.KeyFile = filepath.Join(s.Dir, "pki", "front-proxy-client.key")
	front, err := rest.TransportFor(proxy)
	if err != nil {
		return err
	}
	s.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			named := request.Clone(request.Context())
			found, ok, err := who.AuthenticateRequest(named)
			if err != nil || !ok {
				return next.RoundTrip(request)
			}
			named.Header.Del("Authorization")
			named.Header.Set("X-Remote-User", found.User.GetName())
			if uid := found.User.GetUID(); uid != "" {
				named.Header.Set("X-Remote-Uid", uid)
			}
			for _, group := range found.User.GetGroups() {
				named.Header.Add("X-Remote-Group", group)
			}
			for key, values := range found.User.GetExtra() {
				for _, value := range values {
					named.Header.Add("X-Remote-Extra-"+url.PathEscape(key), value)
				}
			}
			return front.RoundTrip(named)
		})
	})
	return nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

type lender struct {
	server *Server
	mutex  sync.Mutex
	lent   map[string]bool
}

func (l *lender) send(next http.RoundTripper, request *http.Request) (*http.Response, error) {
	if request.Body == nil || (request.Method != http.MethodPost && request.Method != http.MethodPut && request.Method != http.MethodPatch) {
		return next.RoundTrip(request)
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	_ = request.Body.Close()
	again := func() (*http.Response, error) {
		copied := request.Clone(request.Context())
		copied.Body = io.NopCloser(bytes.NewReader(body))
		return next.RoundTrip(copied)
	}
	answer, err := again()
	if err != nil {
		return nil, err
	}
	switch answer.StatusCode {
	case http.StatusNotFound:
		if missing := missingNamespace(answer); missing != "" && strings.Contains(request.URL.Path, "/namespaces/"+missing+"/") {
			if err := l.lend(missing); err != nil {
				return nil, err
			}
			return again()
		}
	case http.StatusConflict:
		var created metav1.PartialObjectMetadata
		if strings.HasSuffix(request.URL.Path, "/api/v1/namespaces") && json.Unmarshal(body, &created) == nil && l.isLent(created.Name) {
			answer.StatusCode, answer.Status = http.StatusCreated, "201 Created"
			text, err := l.server.ask(http.MethodGet, "/api/v1/namespaces/"+created.Name, nil)
			if err != nil {
				return nil, err
			}
			answer.Header.Set("Content-Type", "application/json")
			answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		}
	}
	return answer, nil
}

// missingNamespace returns the namespace that an answer misses; the answer can still be read afterwards.
func missingNamespace(answer *http.Response) string {
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(text))
	if err != nil {
		return ""
	}
	// Told in JSON or in protobuf: the sentence is the same.
	_, rest, found := bytes.Cut(text, []byte(`namespaces "`))
	if !found {
		_, rest, found = bytes.Cut(text, []byte(`namespaces \"`))
	}
	end := bytes.IndexAny(rest, `"\`)
	if !found || end < 0 {
		return ""
	}
	return string(rest[:end])
}

func (l *lender) isLent(name string) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.lent[name]
}

func (l *lender) lend(name string) error {
	l.mutex.Lock()
	l.lent[name] = true
	l.mutex.Unlock()
	_, err := l.server.ask(http.MethodPost, "/api/v1/namespaces", []byte(`{"metadata":{"name":"`+name+`"}}`))
	return err
}

// ask is done as the administrator, whoever the test is.
func (s *Server) ask(method, path string, body []byte) ([]byte, error) {
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = Token
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest(method, config.Host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}
