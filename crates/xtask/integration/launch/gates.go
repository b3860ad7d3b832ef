package launch

import (
	"fmt"
	"maps"
	"slices"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// Our server has no gates of its own and behaves as these say.
var asOurs = map[featuregate.Feature]bool{"MutatingAdmissionPolicy": true, "WatchList": true}

// These change how a server works inside, not what it answers.
var inside = map[featuregate.Feature]bool{
	"ContextualLogging":         true,
	"ListFromCacheSnapshot":     true,
	"SizeBasedListCostEstimate": true,
	"LoggingAlphaOptions":       true,
	"LoggingBetaOptions":        true,
}

var defaults = gates()

func gates() map[featuregate.Feature]bool {
	all := map[featuregate.Feature]bool{}
	for name := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		all[name] = utilfeature.DefaultFeatureGate.Enabled(name)
	}
	return all
}

// GateUnmet says which gate a test has turned; the test is left out then.
func GateUnmet() string {
	if emulated := utilfeature.DefaultMutableFeatureGate.EmulationVersion(); !emulated.EqualTo(atStart) {
		return fmt.Sprintf("emulates version %s", emulated)
	}
	now := gates()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		ours, known := asOurs[name]
		if now[name] != defaults[name] && !inside[name] && (!known || ours != now[name]) {
			return fmt.Sprintf("feature gate %s=%v", name, now[name])
		}
	}
	return ""
}

var atStart = utilfeature.DefaultMutableFeatureGate.EmulationVersion()
