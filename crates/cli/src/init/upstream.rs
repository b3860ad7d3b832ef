//! Upstream's flags that are meaningless here: there is one program with its own store, not eight with etcd.
//!
//! Scripts may still pass them. Flags that only choose a packaging lead to a message; flags for something unsupported are
//! refused.

use anyhow::bail;
use clap::Args;

macro_rules! flags {
    ($($name:ident),* $(,)?) => {
        /// Flags that are taken, and not acted upon.
        #[derive(Debug, Clone, Default, Args)]
        pub struct Flags {
            $(
                #[arg(long, hide = true, value_name = "VALUE", allow_hyphen_values = true)]
                pub $name: Option<String>,
            )*
        }

        impl Flags {
            /// The flags that were given, as written.
            fn given(&self) -> Vec<(String, &str)> {
                let mut given = Vec::new();
                $(
                    if let Some(value) = &self.$name {
                        given.push((stringify!($name).replace('_', "-"), value.as_str()));
                    }
                )*
                given
            }
        }
    };
}

flags!(
    ca_cert_file,
    ca_key_file,
    cert_validity_period,
    config,
    crds,
    etcd_extra_args,
    etcd_image,
    etcd_priority_class,
    etcd_replicas,
    external_etcd_ca_cert_path,
    external_etcd_client_cert_path,
    external_etcd_client_key_path,
    external_etcd_key_prefix,
    external_etcd_servers,
    karmada_aggregated_apiserver_image,
    karmada_aggregated_apiserver_priority_class,
    karmada_aggregated_apiserver_replicas,
    karmada_apiserver_replicas,
    karmada_controller_manager_image,
    karmada_controller_manager_priority_class,
    karmada_kube_controller_manager_extra_args,
    karmada_kube_controller_manager_image,
    karmada_kube_controller_manager_priority_class,
    karmada_kube_controller_manager_replicas,
    karmada_pki,
    karmada_scheduler_extra_args,
    karmada_scheduler_image,
    karmada_scheduler_priority_class,
    karmada_scheduler_replicas,
    karmada_webhook_image,
    karmada_webhook_priority_class,
    kube_image_mirror_country,
    kube_image_registry,
    kube_image_tag,
);

impl Flags {
    /// Refuses unsupported flags.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (name, value) in self.given() {
            if name.ends_with("-replicas") && value != "1" {
                bail!(
                    "--{name}={value} cannot be had: the control plane is one process, which owns its store"
                );
            }
            if name.starts_with("external-etcd") {
                bail!("--{name} cannot be had: the control plane has a store of its own");
            }
            if name == "config" {
                bail!("--config is not read here; give what it says as flags");
            }
            if name.starts_with("ca-") {
                bail!("--{name} cannot be had: the control plane makes its own authority, and keeps its key");
            }
            if name.ends_with("-extra-args") {
                bail!(
                    "--{name} cannot be had: all components are one process; use --karmada-apiserver-extra-args"
                );
            }
        }
        Ok(())
    }

    /// One sentence for each flag without effect.
    pub(super) fn sentences(&self) -> Vec<String> {
        let reason = |name: &str| match name {
            "crds" => "definitions are part of the program",
            "karmada-pki" | "cert-validity-period" => {
                "the control plane makes and renews its own certificates"
            }
            name if name.starts_with("etcd") => "the control plane has a store of its own",
            _ => "all components are one program, whose image is --karmada-apiserver-image",
        };
        let given = self.given();
        let idle = given.iter().filter(|(name, _)| !name.ends_with("-replicas"));
        idle.map(|(name, _)| format!("--{name} means nothing here: {}", reason(name))).collect()
    }
}
