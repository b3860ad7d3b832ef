package launch

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Wishes is what the flags of a test come to.
type Wishes struct {
	Options Options
	// WithoutNamespaces is set where a test writes into namespaces that do not exist.
	WithoutNamespaces bool
	// Unmet says which flag asks for something that our server has no switch for; the test is left out then.
	Unmet string
}

// These ask for what is the case anyhow, or for what makes no difference that a client can see.
var ignored = sets.New(
	"allow-privileged", "audit-log-mode", "audit-log-version", "authentication-kubeconfig", "authentication-skip-lookup",
	"authorization-kubeconfig", "enable-priority-and-fairness", "endpoint-reconciler-type", "etcd-prefix", "etcd-servers",
	"kubeconfig", "watch-cache", "experimental-watch-progress-notify-interval", "enable-aggregator-routing",
)

// Our program has these under the same names.
var handedOn = sets.New("audit-log-path", "audit-policy-file")

// These are not part of our server, or their absence is not noticed.
var absentPlugins = sets.New(
	"ServiceAccount", "StorageObjectInUseProtection", "TaintNodesByCondition", "Priority", "DefaultTolerationSeconds",
	"PodSecurity", "RuntimeClass", "DefaultStorageClass", "DefaultIngressClass", "LimitRanger", "ResourceQuota",
	"PodNodeSelector", "NodeRestriction",
)

// These are part of our server.
var presentPlugins = sets.New(
	"NamespaceLifecycle", "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook", "ValidatingAdmissionPolicy",
	"MutatingAdmissionPolicy", "CertificateApproval", "CertificateSigning", "CertificateSubjectRestriction",
)

// Understand reads the flags that a test gives to kube-apiserver.
func Understand(flags []string) Wishes {
	var wishes Wishes
	for i := 0; i < len(flags); i++ {
		name, value, found := strings.Cut(strings.TrimPrefix(flags[i], "--"), "=")
		if !found {
			value = "true"
			if i+1 < len(flags) && !strings.HasPrefix(flags[i+1], "--") {
				i++
				value = flags[i]
			}
		}
		if !wishes.take(name, value) && wishes.Unmet == "" {
			wishes.Unmet = fmt.Sprintf("server option --%s=%s", name, value)
		}
	}
	return wishes
}

// take says whether the wish can be met.
func (w *Wishes) take(name, value string) bool {
	list := strings.Split(value, ",")
	switch {
	case ignored.Has(name):
	case handedOn.Has(name):
		w.Options.Arguments = append(w.Options.Arguments, "--"+name+"="+value)
	case name == "token-auth-file":
		w.Options.TokenFile = value
	case name == "disable-admission-plugins":
		for _, plugin := range list {
			switch {
			case plugin == "NamespaceLifecycle":
				w.WithoutNamespaces = true
			case !absentPlugins.Has(plugin) && !presentPlugins.Has(plugin):
				return false
			}
		}
	case name == "enable-admission-plugins":
		return presentPlugins.HasAll(list...)
	case name == "runtime-config":
		for _, each := range list {
			if strings.HasSuffix(each, "=false") {
				return false
			}
		}
	case name == "authorization-mode":
		return value == "RBAC" || value == "Node,RBAC"
	case name == "anonymous-auth":
		return value == "true"
	default:
		return false
	}
	return true
}
