//! A Pod's quality-of-service class: what its containers ask for decides who is evicted first.

use apimachinery::quantity::Quantity;

use crate::validation::node::Node;

const COUNTED: [&str; 2] = ["cpu", "memory"];

/// Returns `Guaranteed` if every container limits cpu and memory and asks for exactly that, `BestEffort` if
/// nobody asks for anything, else `Burstable`.
pub(super) fn class(spec: Node<'_>) -> &'static str {
    let pod_level = spec.at("resources");
    if !pod_level.at("requests").is_empty() || !pod_level.at("limits").is_empty() {
        return classify([pod_level].into_iter());
    }
    let containers = spec.at("initContainers").items().chain(spec.at("containers").items());
    classify(containers.map(|container| container.at("resources")))
}

fn classify<'a>(all: impl Iterator<Item = Node<'a>>) -> &'static str {
    let mut anything = false;
    let mut guaranteed = true;
    for resources in all {
        for name in COUNTED {
            let request = positive(resources.at("requests").at(name));
            let limit = positive(resources.at("limits").at(name));
            anything |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (anything, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

fn positive(node: Node<'_>) -> Option<Quantity> {
    node.text().parse::<Quantity>().ok().filter(|quantity| quantity.sign() > 0)
}
