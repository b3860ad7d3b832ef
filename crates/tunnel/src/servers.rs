//! The servers of a control plane, as the two ends of tunnels name them to each other.
//!
//! Several servers may share a store and stand behind one address. A server says who it is when it takes a tunnel, and who
//! else there is in each greeting; an agent says which servers it has tunnels to. Names come from the other end, so their
//! number and length are bounded.

use std::collections::BTreeSet;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::Tunnels;

/// The name of a server, in its answer to an agent that asks for a tunnel.
pub(crate) const SERVER: HeaderName = HeaderName::from_static("karmada-tunnel-server");
/// Which servers an agent has tunnels to, in its request for another one.
pub(crate) const HELD: HeaderName = HeaderName::from_static("karmada-tunnel-held");
/// Which servers there are, in a greeting.
pub(crate) const SERVERS: HeaderName = HeaderName::from_static("karmada-tunnel-servers");

/// So many servers are known at most, and so long are their names.
pub(crate) const MOST: usize = 16;
const LONGEST: usize = 64;

pub(crate) type Names = BTreeSet<String>;

/// The servers, as one of them sees them. One that shares its store with nobody names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Servers {
    own: Option<String>,
    all: Names,
}

impl Servers {
    /// Returns what a greeting says.
    pub(crate) fn greeting(&self) -> Option<HeaderValue> {
        self.own.as_ref().and_then(|_| write(&self.all))
    }
}

impl Tunnels {
    /// Says who this server is, and who all servers of the control plane are. Agents are told, and open tunnels to those that
    /// they have none to.
    pub fn know_servers(&self, own: &str, others: impl IntoIterator<Item = String>) {
        let all = others.into_iter().chain([own.to_owned()]).collect();
        let now = Servers { own: Some(own.to_owned()), all };
        self.servers().send_if_modified(|known| {
            let news = *known != now;
            *known = now;
            news
        });
    }

    /// Returns who this server is, if there may be others.
    pub fn server(&self) -> Option<String> {
        self.servers().borrow().own.clone()
    }

    /// Says whether an agent that asks for a tunnel, with these headers, has one to this very server: what it wanted is
    /// another server.
    pub fn has_already(&self, cluster: &str, asked: &HeaderMap) -> bool {
        let own = self.server();
        // An agent may not have noticed yet that its tunnel has ended.
        own.is_some_and(|own| read(asked.get(&HELD)).contains(&own)) && self.is_open(cluster)
    }

    /// Puts into an answer to an agent who this server is.
    pub fn introduce(&self, answer: &mut HeaderMap) {
        if let Some(own) = self.server().and_then(|own| HeaderValue::try_from(own).ok()) {
            answer.insert(SERVER, own);
        }
    }
}

/// Reads names; what is none is left out.
pub(crate) fn read(value: Option<&HeaderValue>) -> Names {
    let text = value.and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(',').map(str::trim).filter(|name| is_name(name)).take(MOST).map(str::to_owned).collect()
}

/// Writes names, if there are any.
pub(crate) fn write(names: &Names) -> Option<HeaderValue> {
    let named: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_name(name)).take(MOST).collect();
    if named.is_empty() { None } else { HeaderValue::try_from(named.join(",")).ok() }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() <= LONGEST && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Names {
        list.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn names_are_read_as_they_are_written_and_bounded() {
        let some = names(&["a", "b-1", "0b7e4d0e-5a33-4c2e-9f4e-0d9c6a0d4f11"]);
        assert_eq!(read(write(&some).as_ref()), some);
        assert_eq!((write(&Names::new()), read(None)), (None, Names::new()));
        let odd = HeaderValue::from_bytes(b"a,\xe9").unwrap();
        assert_eq!(read(Some(&odd)), names(&[]), "what is not text names nobody");
        let odd = HeaderValue::from_str(&format!(" a , ,b c,{},d", "x".repeat(65))).unwrap();
        assert_eq!(read(Some(&odd)), names(&["a", "d"]));
        let many: Vec<String> = (10..99).map(|number| number.to_string()).collect();
        assert_eq!(read(Some(&HeaderValue::from_str(&many.join(",")).unwrap())).len(), MOST);
    }

    #[test]
    fn a_server_that_shares_its_store_with_nobody_names_none() {
        let tunnels = Tunnels::default();
        let mut answer = HeaderMap::new();
        tunnels.introduce(&mut answer);
        assert!(answer.is_empty() && tunnels.servers().borrow().greeting().is_none());
        tunnels.know_servers("a", ["b".to_owned()]);
        tunnels.introduce(&mut answer);
        assert_eq!(answer.get(SERVER).unwrap(), "a");
        assert_eq!(tunnels.servers().borrow().greeting().unwrap(), "a,b");
        let asked = HeaderMap::from_iter([(HELD, HeaderValue::from_static("a,c"))]);
        assert!(!tunnels.has_already("m1", &asked), "the agent is mistaken: there is none");
    }
}
