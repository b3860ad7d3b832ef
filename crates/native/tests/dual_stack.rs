//! Services of one family of addresses and of both, where the cluster has one and where it has both: what is left out, what is given,
//! and what may change, in kube-apiserver's words. What kube-apiserver 1.36.3 answered.

use std::cell::RefCell;
use std::collections::BTreeSet;

use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use native::prepare::service::{self, Allocation, Allocator, Family};
use native::{defaults, prepare, validation};
use serde_json::{Value, json};

const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];
const BOTH: &[Family] = &[Family::V4, Family::V6];
const BOTH_V6_FIRST: &[Family] = &[Family::V6, Family::V4];

/// Hands out the next address of a family.
struct Cluster {
    families: &'static [Family],
    taken: RefCell<BTreeSet<String>>,
}

impl Cluster {
    fn new(families: &'static [Family]) -> Self {
        Self { families, taken: RefCell::default() }
    }
}

impl Allocator for Cluster {
    fn families(&self) -> &[Family] {
        self.families
    }

    fn cluster_ip(&self, family: Family, wanted: Option<&str>) -> Result<String, String> {
        assert!(self.families.contains(&family), "nobody asks for what the cluster does not have");
        let mut taken = self.taken.borrow_mut();
        let next = || {
            let number = (1..).find(|number| !taken.contains(&address(family, *number)));
            address(family, number.expect("addresses are plenty"))
        };
        let address = wanted.map_or_else(next, str::to_owned);
        if taken.insert(address.clone()) {
            Ok(address)
        } else {
            Err("provided IP is already allocated".to_owned())
        }
    }

    fn node_port(&self, wanted: Option<u16>) -> Result<u16, String> {
        Ok(wanted.unwrap_or(30000))
    }

    fn release_cluster_ip(&self, address: &str) {
        assert!(self.taken.borrow_mut().remove(address), "{address} was not taken");
    }

    fn release_node_port(&self, _port: u16) {}
}

fn address(family: Family, number: u32) -> String {
    match family {
        Family::V4 => format!("10.0.0.{number}"),
        Family::V6 => format!("fd00::{number}"),
    }
}

/// What the server does to a Service between decoding and storing it.
fn write(spec: &Value, old: Option<&Value>, cluster: &Cluster) -> Result<(Value, Allocation), Vec<String>> {
    let gvk = Gvk::new("", "v1", "Service");
    let mut object = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default", "resourceVersion": "1"}, "spec": spec});
    defaults::apply(&gvk, &mut object);
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let ctx = prepare::Context { user: "u", user_uid: "", groups: &[], extra: None, now, uid: "1" };
    match old {
        None => prepare::for_create(&gvk, &mut object, &ctx),
        Some(old) => prepare::for_update(&gvk, &mut object, old, &ctx),
    }
    let told =
        |errors: Vec<apimachinery::field::Error>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let allocation = service::allocate(&mut object, old, cluster).map_err(told)?;
    let errors = match old {
        None => validation::create(&gvk, &object),
        Some(old) => validation::update(&gvk, &object, old),
    };
    if errors.is_empty() {
        return Ok((object, allocation));
    }
    allocation.revert(cluster);
    Err(told(errors))
}

/// Returns policy, families and addresses.
fn story(object: &Value) -> String {
    let spec = &object["spec"];
    let list = |field: &str| {
        let items = spec[field].as_array().into_iter().flatten();
        items.map(|item| item.as_str().expect("a text")).collect::<Vec<_>>().join(",")
    };
    let first = spec["clusterIPs"][0].as_str().unwrap_or_default();
    assert_eq!(spec["clusterIP"].as_str().unwrap_or_default(), first, "both fields tell the same");
    format!(
        "{} {} {}",
        spec["ipFamilyPolicy"].as_str().unwrap_or("-"),
        list("ipFamilies"),
        list("clusterIPs")
    )
}

fn with(spec: &str) -> Value {
    let mut spec: Value = apimachinery::yaml::read(&format!("{{{spec}}}")).expect("YAML").value;
    if spec["ports"].is_null() && spec["type"] != "ExternalName" {
        spec["ports"] = json!([{"port": 80}]);
    }
    spec
}

#[test]
fn a_new_service_gets_the_families_it_asks_for() {
    const SELECTS: &str = "selector: {app: web}";
    const NONE: &str = "clusterIP: None";
    let headless = |more: &str| format!("{NONE}, {SELECTS}, {more}");
    let free = |more: &str| format!("{NONE}, {more}");
    for (families, spec, wanted) in [
        // Nothing is said: one family, the first of the cluster.
        (V4, SELECTS.to_owned(), "SingleStack IPv4 10.0.0.1"),
        (V6, SELECTS.to_owned(), "SingleStack IPv6 fd00::1"),
        (BOTH, SELECTS.to_owned(), "SingleStack IPv4 10.0.0.1"),
        (BOTH_V6_FIRST, SELECTS.to_owned(), "SingleStack IPv6 fd00::1"),
        // A policy alone.
        (V4, "ipFamilyPolicy: SingleStack".to_owned(), "SingleStack IPv4 10.0.0.1"),
        (V4, "ipFamilyPolicy: PreferDualStack".to_owned(), "PreferDualStack IPv4 10.0.0.1"),
        (BOTH, "ipFamilyPolicy: PreferDualStack".to_owned(), "PreferDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        (
            BOTH_V6_FIRST,
            "ipFamilyPolicy: PreferDualStack".to_owned(),
            "PreferDualStack IPv6,IPv4 fd00::1,10.0.0.1",
        ),
        (BOTH, "ipFamilyPolicy: RequireDualStack".to_owned(), "RequireDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        (
            BOTH,
            "type: NodePort, ipFamilyPolicy: RequireDualStack".to_owned(),
            "RequireDualStack IPv4,IPv6 10.0.0.1,fd00::1",
        ),
        // Families, with and without a policy.
        (BOTH, "ipFamilies: [IPv6]".to_owned(), "SingleStack IPv6 fd00::1"),
        (
            BOTH,
            "ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv6]".to_owned(),
            "PreferDualStack IPv6,IPv4 fd00::1,10.0.0.1",
        ),
        (
            BOTH,
            "ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6, IPv4]".to_owned(),
            "RequireDualStack IPv6,IPv4 fd00::1,10.0.0.1",
        ),
        // Addresses tell the families that are left out.
        (BOTH, "clusterIP: fd00::9".to_owned(), "SingleStack IPv6 fd00::9"),
        (
            BOTH,
            "ipFamilyPolicy: PreferDualStack, clusterIP: fd00::9".to_owned(),
            "PreferDualStack IPv6,IPv4 fd00::9,10.0.0.1",
        ),
        (
            BOTH,
            "ipFamilyPolicy: RequireDualStack, clusterIP: fd00::9, clusterIPs: [fd00::9, 10.0.0.9]"
                .to_owned(),
            "RequireDualStack IPv6,IPv4 fd00::9,10.0.0.9",
        ),
        // Headless, with a selector: as any other, without addresses.
        (BOTH, headless(""), "SingleStack IPv4 None"),
        (V4, headless("ipFamilyPolicy: PreferDualStack"), "PreferDualStack IPv4 None"),
        (BOTH, headless("ipFamilyPolicy: PreferDualStack"), "PreferDualStack IPv4,IPv6 None"),
        (BOTH, headless("ipFamilies: [IPv6]"), "SingleStack IPv6 None"),
        // Headless, without a selector: whoever writes the endpoints may have both families, whatever the cluster has.
        (V4, free(""), "RequireDualStack IPv4,IPv6 None"),
        (BOTH_V6_FIRST, free(""), "RequireDualStack IPv6,IPv4 None"),
        (V4, free("ipFamilyPolicy: SingleStack"), "SingleStack IPv4 None"),
        (V4, free("ipFamilyPolicy: SingleStack, ipFamilies: [IPv6]"), "SingleStack IPv6 None"),
        (V4, free("ipFamilies: [IPv6]"), "RequireDualStack IPv6,IPv4 None"),
        (BOTH, "type: ExternalName, externalName: example.com".to_owned(), "-  "),
    ] {
        let cluster = Cluster::new(families);
        let (object, allocation) =
            write(&with(&spec), None, &cluster).unwrap_or_else(|errors| panic!("{spec}: {errors:?}"));
        assert_eq!(story(&object), wanted, "{families:?} {spec}");
        allocation.commit(&cluster);
        let held: BTreeSet<String> = service::held(&object).freed_ips.into_iter().collect();
        assert_eq!(*cluster.taken.borrow(), held, "{spec}");
    }
}

#[test]
fn what_does_not_fit_is_refused_in_upstreams_words() {
    const POLICY: &str = "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple";
    for (families, spec, errors) in [
        (
            V4,
            "ipFamilyPolicy: RequireDualStack",
            vec![
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
            ],
        ),
        (
            V4,
            "ipFamilies: [IPv6]",
            vec!["spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"],
        ),
        (
            V4,
            "ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv4, IPv6]",
            vec!["spec.ipFamilies[1]: Invalid value: \"IPv6\": not configured on this cluster"],
        ),
        (
            V4,
            "clusterIP: fd00::9",
            vec!["spec.clusterIPs[0]: Invalid value: [\"fd00::9\"]: IPv6 is not configured on this cluster"],
        ),
        (
            V4,
            "ipFamilyPolicy: PreferDualStack, clusterIP: 10.0.0.9, clusterIPs: [10.0.0.9, fd00::9]",
            vec![
                "spec.clusterIPs[1]: Invalid value: [\"10.0.0.9\",\"fd00::9\"]: IPv6 is not configured on this cluster",
            ],
        ),
        (BOTH, "ipFamilies: [IPv4, IPv6]", vec![&*format!("{POLICY} IP families are specified")]),
        (
            BOTH,
            "clusterIP: 10.0.0.9, clusterIPs: [10.0.0.9, fd00::9], ipFamilies: [IPv4, IPv6]",
            vec![
                &*format!("{POLICY} cluster IPs are specified"),
                &*format!("{POLICY} IP families are specified"),
            ],
        ),
        (
            BOTH,
            "ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4, IPv4]",
            vec!["spec.ipFamilies[1]: Duplicate value: \"IPv4\""],
        ),
        (
            BOTH,
            "ipFamilyPolicy: RequireDualStack, clusterIP: 10.0.0.9, clusterIPs: [10.0.0.9, 10.0.0.8]",
            vec![
                "spec.clusterIPs: Invalid value: [\"10.0.0.9\",\"10.0.0.8\"]: may specify no more than one IP for each IP family",
            ],
        ),
        (
            BOTH,
            "ipFamilyPolicy: RequireDualStack, clusterIP: 10.0.0.9, clusterIPs: [10.0.0.9, fd00::9], ipFamilies: [IPv6, IPv4]",
            vec![
                "spec.clusterIPs[0]: Invalid value: \"10.0.0.9\": expected an IPv6 value as indicated by `ipFamilies[0]`",
                "spec.clusterIPs[1]: Invalid value: \"fd00::9\": expected an IPv4 value as indicated by `ipFamilies[1]`",
            ],
        ),
        (
            BOTH,
            "clusterIPs: [10.0.0.9]",
            vec![
                "spec.clusterIPs: Invalid value: [\"10.0.0.9\"]: must be empty when `clusterIP` is not specified",
            ],
        ),
        (
            BOTH,
            "clusterIP: None, clusterIPs: [None, fd00::9]",
            vec![
                "spec.clusterIPs: Invalid value: [\"None\",\"fd00::9\"]: 'None' must be the first and only value",
            ],
        ),
        (
            BOTH,
            "ipFamilyPolicy: ''",
            vec![
                "spec.ipFamilyPolicy: Unsupported value: \"\": supported values: \"PreferDualStack\", \"RequireDualStack\", \"SingleStack\"",
            ],
        ),
        (
            BOTH,
            "type: ExternalName, externalName: example.com, ipFamilyPolicy: SingleStack",
            vec!["spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services"],
        ),
    ] {
        let cluster = Cluster::new(families);
        let told = write(&with(spec), None, &cluster).expect_err(spec);
        assert_eq!(told, errors, "{spec}");
        assert_eq!(*cluster.taken.borrow(), BTreeSet::new(), "{spec}: nothing stays taken");
    }
}

#[test]
fn a_second_address_that_cannot_be_had_gives_the_first_one_back() {
    let cluster = Cluster::new(BOTH);
    cluster.taken.borrow_mut().insert("fd00::9".to_owned());
    let spec = with("ipFamilyPolicy: RequireDualStack, clusterIP: 10.0.0.9, clusterIPs: [10.0.0.9, fd00::9]");
    let told = write(&spec, None, &cluster).expect_err("it is taken");
    let wanted = "spec.clusterIPs: Invalid value: [\"10.0.0.9\",\"fd00::9\"]: failed to allocate IP fd00::9: provided IP is already allocated";
    assert_eq!(told, [wanted]);
    assert_eq!(*cluster.taken.borrow(), BTreeSet::from(["fd00::9".to_owned()]));
}

/// A change of a Service: the fields of the stored one that are set, or removed with null.
struct Change {
    before: &'static str,
    /// What the cluster has when the Service is made, and when it is changed.
    families: [&'static [Family]; 2],
    change: &'static str,
    outcome: Result<&'static str, &'static [&'static str]>,
}

#[test]
fn what_changes_a_service_may_go_through() {
    const PREFER: &str = "ipFamilyPolicy: PreferDualStack";
    const REQUIRE: &str = "ipFamilyPolicy: RequireDualStack";
    const CHANGED: &str =
        "spec.clusterIPs[1]: Invalid value: [\"10.0.0.1\",\"fd00::9\"]: may not change once set";
    let both = [BOTH, BOTH];
    for Change { before, families: [first, then], change, outcome } in [
        // A second family comes.
        Change {
            before: "",
            families: both,
            change: REQUIRE,
            outcome: Ok("RequireDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        Change {
            before: "",
            families: both,
            change: PREFER,
            outcome: Ok("PreferDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        Change {
            before: "ipFamilies: [IPv6]",
            families: both,
            change: REQUIRE,
            outcome: Ok("RequireDualStack IPv6,IPv4 fd00::1,10.0.0.1"),
        },
        Change {
            before: "",
            families: both,
            change: "ipFamilyPolicy: PreferDualStack, clusterIPs: [10.0.0.1, fd00::9]",
            outcome: Ok("PreferDualStack IPv4,IPv6 10.0.0.1,fd00::9"),
        },
        Change {
            before: "",
            families: [V4, V4],
            change: REQUIRE,
            outcome: Err(&[
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
            ]),
        },
        Change {
            before: "",
            families: both,
            change: "ipFamilies: [IPv4, IPv6]",
            outcome: Err(&[
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
            ]),
        },
        // The cluster has more or fewer families than it had: that changes no Service.
        Change {
            before: PREFER,
            families: [V4, BOTH],
            change: "",
            outcome: Ok("PreferDualStack IPv4 10.0.0.1"),
        },
        Change {
            before: PREFER,
            families: [V4, BOTH],
            change: "selector: {a: b}",
            outcome: Ok("PreferDualStack IPv4 10.0.0.1"),
        },
        Change {
            before: PREFER,
            families: [V4, BOTH],
            change: REQUIRE,
            outcome: Ok("RequireDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        Change {
            before: PREFER,
            families: [V4, BOTH],
            change: "ipFamilies: [IPv4, IPv6]",
            outcome: Ok("PreferDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        Change {
            before: PREFER,
            families: [BOTH, V4],
            change: "selector: {a: b}",
            outcome: Ok("PreferDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        Change {
            before: PREFER,
            families: [BOTH, V4],
            change: "ipFamilyPolicy: SingleStack",
            outcome: Ok("SingleStack IPv4 10.0.0.1"),
        },
        // The second family goes. The policy has to say so.
        Change {
            before: REQUIRE,
            families: both,
            change: "ipFamilyPolicy: SingleStack",
            outcome: Ok("SingleStack IPv4 10.0.0.1"),
        },
        Change {
            before: REQUIRE,
            families: both,
            change: "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]",
            outcome: Ok("SingleStack IPv4 10.0.0.1"),
        },
        Change {
            before: REQUIRE,
            families: both,
            change: "ipFamilyPolicy: SingleStack, clusterIPs: [10.0.0.1], ipFamilies: null",
            outcome: Ok("SingleStack IPv4 10.0.0.1"),
        },
        Change {
            before: REQUIRE,
            families: both,
            change: "ipFamilies: [IPv4]",
            outcome: Err(&[
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary IP family",
            ]),
        },
        Change {
            before: PREFER,
            families: both,
            change: "clusterIPs: [10.0.0.1], ipFamilies: [IPv4]",
            outcome: Err(&[
                "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be 'SingleStack' to release the secondary cluster IP",
                "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be 'SingleStack' to release the secondary IP family",
            ]),
        },
        // A field that is left out keeps its value.
        Change {
            before: REQUIRE,
            families: both,
            change: "ipFamilyPolicy: null, ipFamilies: null, clusterIP: null, clusterIPs: null",
            outcome: Ok("RequireDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        Change {
            before: PREFER,
            families: both,
            change: "ipFamilyPolicy: null",
            outcome: Ok("PreferDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        Change {
            before: PREFER,
            families: both,
            change: REQUIRE,
            outcome: Ok("RequireDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        // What there is does not change.
        Change {
            before: REQUIRE,
            families: both,
            change: "clusterIP: 10.0.0.9, clusterIPs: [10.0.0.9, fd00::1]",
            outcome: Err(&[
                "spec.clusterIPs[0]: Invalid value: [\"10.0.0.9\",\"fd00::1\"]: may not change once set",
            ]),
        },
        // The singular alone stands for the whole list.
        Change {
            before: REQUIRE,
            families: both,
            change: "clusterIP: 10.0.0.9",
            outcome: Err(&[
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary cluster IP",
            ]),
        },
        Change {
            before: REQUIRE,
            families: both,
            change: "clusterIPs: [10.0.0.1, fd00::9]",
            outcome: Err(&[CHANGED]),
        },
        Change {
            before: REQUIRE,
            families: both,
            change: "clusterIP: fd00::1, clusterIPs: [fd00::1, 10.0.0.1], ipFamilies: [IPv6, IPv4]",
            outcome: Err(&[
                "spec.clusterIPs[0]: Invalid value: [\"fd00::1\",\"10.0.0.1\"]: may not change once set",
                "spec.clusterIPs[1]: Invalid value: [\"fd00::1\",\"10.0.0.1\"]: may not change once set",
                "spec.ipFamilies[0]: Invalid value: [\"IPv6\",\"IPv4\"]: may not change once set",
                "spec.ipFamilies[0]: Invalid value: [\"IPv6\",\"IPv4\"]: may not change once set",
            ]),
        },
        Change {
            before: "",
            families: both,
            change: "clusterIP: fd00::1, clusterIPs: [fd00::1], ipFamilies: [IPv6]",
            outcome: Err(&[
                "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: may not change once set",
                "spec.ipFamilies[0]: Invalid value: [\"IPv6\"]: may not change once set",
            ]),
        },
        // Headless Services have nothing that could be lost.
        Change {
            before: "clusterIP: None, selector: {a: b}",
            families: both,
            change: "ipFamilies: [IPv6]",
            outcome: Ok("SingleStack IPv6 None"),
        },
        Change {
            before: "clusterIP: None, selector: {a: b}",
            families: both,
            change: REQUIRE,
            outcome: Ok("RequireDualStack IPv4,IPv6 None"),
        },
        Change {
            before: "clusterIP: None, selector: {a: b}, ipFamilyPolicy: PreferDualStack",
            families: both,
            change: "ipFamilyPolicy: SingleStack",
            outcome: Ok("SingleStack IPv4 None"),
        },
        Change {
            before: "clusterIP: None",
            families: [V4, V4],
            change: "ipFamilyPolicy: SingleStack",
            outcome: Ok("SingleStack IPv4 None"),
        },
        // Other types.
        Change {
            before: REQUIRE,
            families: both,
            change: "type: ExternalName, externalName: example.com",
            outcome: Ok("-  "),
        },
        Change {
            before: "type: ExternalName, externalName: example.com",
            families: both,
            change: "type: ClusterIP, externalName: null, ports: [{port: 80}], ipFamilyPolicy: RequireDualStack",
            outcome: Ok("RequireDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
        Change {
            before: PREFER,
            families: both,
            change: "type: NodePort",
            outcome: Ok("PreferDualStack IPv4,IPv6 10.0.0.1,fd00::1"),
        },
    ] {
        let mut cluster = Cluster::new(first);
        let (old, allocation) =
            write(&with(before), None, &cluster).unwrap_or_else(|errors| panic!("{before}: {errors:?}"));
        allocation.commit(&cluster);
        cluster.families = then;
        let held = cluster.taken.borrow().clone();
        let mut spec = old["spec"].clone();
        for (field, value) in with(change).as_object().expect("fields") {
            // Ports are there already.
            if field != "ports" || change.contains("ports") {
                spec[field] = value.clone();
            }
        }
        spec.as_object_mut().expect("fields").retain(|_, value| !value.is_null());
        let case = format!("{before:?} then {change:?}");
        match (write(&spec, Some(&old), &cluster), outcome) {
            (Ok((new, allocation)), Ok(wanted)) => {
                assert_eq!(story(&new), wanted, "{case}");
                allocation.commit(&cluster);
                let holds: BTreeSet<String> = service::held(&new).freed_ips.into_iter().collect();
                assert_eq!(*cluster.taken.borrow(), holds, "{case}: what it has is taken, and nothing else");
                // What was stored can be sent back, and then nothing changes.
                let (again, allocation) = write(&new["spec"], Some(&new), &cluster)
                    .unwrap_or_else(|errors| panic!("{case}: {errors:?}"));
                assert_eq!((&again["spec"], allocation), (&new["spec"], Allocation::default()), "{case}");
            }
            (Err(told), Err(wanted)) => {
                assert_eq!(told, wanted, "{case}");
                assert_eq!(*cluster.taken.borrow(), held, "{case}: a refused change takes nothing");
            }
            (outcome, wanted) => panic!("{case}: {outcome:?}, wanted {wanted:?}"),
        }
    }
}
