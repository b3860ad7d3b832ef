//! Members for tests, started once and used by many.
//!
//! `cargo test` runs every test binary as a process of its own. So that they need not start clusters each, the one who runs them
//! (`cargo xtask ci`) starts a fleet, names its folder in `KARMADA_RS_CLUSTERS`, and ends it afterwards. Without the variable a test binary
//! starts its own fleet on first use and keeps it until the process ends.
//!
//! Tests that only use members run side by side ([`shared`]); a test that does harm to a member runs alone
//! ([`exclusive`]). A lock file in the fleet's folder keeps the two apart, also between processes.

use std::{
    fs, io,
    ops::Deref,
    path::{Path, PathBuf},
};

use tokio::sync::{Mutex, OnceCell};

use crate::{
    cluster::Cluster,
    error::Error,
    fleet::Fleet,
    options::{ClusterOptions, Flavour, FleetOptions},
    toolchain::{MEMBER_RECIPES, Toolchain},
};

/// Names the folder of the fleet that the tests of a run share.
pub const CLUSTERS_VARIABLE: &str = "KARMADA_RS_CLUSTERS";

/// Members lent to a test. Keep it until the test is over: it holds the lock.
#[derive(Debug)]
pub struct Members {
    clusters: Vec<Cluster>,
    access: Access,
    _lock: fs::File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Shared,
    Exclusive,
}

impl Drop for Members {
    /// Puts in order what the test may have broken, also when it failed: the next one counts on it. The lock goes afterwards.
    fn drop(&mut self) {
        if self.access == Access::Exclusive {
            self.clusters.iter().for_each(Cluster::recover_blocking);
        }
    }
}

impl Deref for Members {
    type Target = [Cluster];

    fn deref(&self) -> &[Cluster] {
        &self.clusters
    }
}

/// Returns `count` members, for use beside other tests: keep to namespaces of your own and break nothing.
///
/// Returns None, after saying so loudly, where members cannot be had since there is no Go toolchain: then the test has nothing to do.
/// Panics when they should be there and are not.
pub async fn shared(count: usize) -> Option<Members> {
    lend(count, Access::Shared).await
}

/// Returns `count` members that no other test uses meanwhile, so they may be cut off, frozen or emptied. When the
/// value is dropped, they are put in order again. Otherwise like [`shared`].
pub async fn exclusive(count: usize) -> Option<Members> {
    lend(count, Access::Exclusive).await
}

async fn lend(count: usize, access: Access) -> Option<Members> {
    let toolchain = Toolchain::from_env().unwrap_or_else(|error| panic!("{error}"));
    if std::env::var_os(CLUSTERS_VARIABLE).is_none() && !toolchain.can_provide(&MEMBER_RECIPES) {
        crate::left_out("real clusters, and there is no Go toolchain to build them with");
        return None;
    }
    match borrow(count, access).await {
        Ok(members) => Some(members),
        Err(error) => panic!("no members for this test: {}", error.chain()),
    }
}

async fn borrow(count: usize, access: Access) -> Result<Members, Error> {
    let (dir, members) = match std::env::var_os(CLUSTERS_VARIABLE) {
        Some(dir) => {
            let dir = PathBuf::from(dir);
            let fleet = Fleet::attach(&dir).await?;
            (dir, members_of(&fleet))
        }
        None => own(count).await?,
    };
    if members.len() < count {
        let name = format!("member{count}");
        return Err(Error::NoSuchCluster { name, dir });
    }
    let lock = lock(&dir, access).await?;
    Ok(Members { clusters: members.into_iter().take(count).collect(), access, _lock: lock })
}

/// Returns the members of this process's own fleets, growing them when too few. The lock file of the first counts for all.
async fn own(count: usize) -> Result<(PathBuf, Vec<Cluster>), Error> {
    static FLEETS: OnceCell<Mutex<Vec<Fleet>>> = OnceCell::const_new();
    let mut fleets = FLEETS.get_or_init(async || Mutex::new(Vec::new())).await.lock().await;
    let have: usize = fleets.iter().map(|fleet| members_of(fleet).len()).sum();
    if have < count || fleets.is_empty() {
        let missing =
            (have + 1..=count.max(1)).map(|number| ClusterOptions::member(format!("member{number}")));
        fleets.push(Fleet::start(FleetOptions::of(missing)).await?);
    }
    Ok((fleets[0].dir().to_path_buf(), fleets.iter().flat_map(members_of).collect()))
}

fn members_of(fleet: &Fleet) -> Vec<Cluster> {
    fleet.clusters().filter(|cluster| cluster.flavour() == Flavour::Member).collect()
}

async fn lock(dir: &Path, access: Access) -> Result<fs::File, Error> {
    let path = dir.join("tests.lock");
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    // Waiting for the lock blocks a thread, which must not be one that runs tests.
    let taken = tokio::task::spawn_blocking(move || {
        match access {
            Access::Shared => file.lock_shared(),
            Access::Exclusive => file.lock(),
        }
        .map(|()| file)
    })
    .await;
    taken.unwrap_or_else(|failure| Err(io::Error::other(failure))).map_err(Error::io("lock", &path))
}
