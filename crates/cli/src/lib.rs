//! The commands, one file each, and their output.
//!
//! The same commands form a separate program (`karmadactl`, `kubectl-karmada`: [`alone`]) and appear beside the roles of
//! `karmada`. All of them reach the control plane and its members through `server`, resolve their objects through `select`, and
//! print through `print`.

mod addons;
mod annotate;
mod api_resources;
mod api_versions;
mod apply;
mod attach;
pub mod certificates;
mod clients;
mod clusters;
mod complete;
mod completion;
mod cordon;
mod cp;
mod create;
mod deinit;
mod delete;
mod describe;
mod diff;
mod discovery;
mod doctor;
mod edit;
mod exec;
mod explain;
mod failure;
mod get;
mod init;
mod interpret;
mod join;
mod label;
mod logs;
mod manifests;
mod marks;
mod options;
mod output;
mod patch;
mod pods;
mod port_forward;
mod print;
mod program;
mod promote;
mod register;
pub mod registration;
mod retries;
mod rollout;
mod scale;
mod search;
mod select;
mod server;
pub mod serving;
mod session;
mod taint;
mod terminal;
mod token;
mod top;
mod unjoin;
mod unregister;
mod version;
mod wait;

pub use clients::{ControlArguments, check_name, config};
pub use completion::script;
pub use failure::told;
pub use join::{JoinArguments, enrol, join};
pub use program::{alone, command, is_command, normalize, refuse, renamed};
pub use retries::client;
pub use unjoin::{UnjoinArguments, unjoin};

/// A command of the CLI.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    Explain(Box<explain::Arguments>),
    Get(Box<get::Arguments>),
    Create(Box<create::Arguments>),
    Edit(Box<edit::Arguments>),
    Delete(Box<delete::Arguments>),
    Init(Box<init::Arguments>),
    Deinit(deinit::Arguments),
    Addons(Box<addons::Arguments>),
    Join(JoinArguments),
    Unjoin(UnjoinArguments),
    Token(token::Arguments),
    Register(Box<register::Arguments>),
    Unregister(unregister::Arguments),
    Cordon(cordon::CordonArguments),
    Uncordon(cordon::UncordonArguments),
    Taint(taint::Arguments),
    Attach(Box<attach::Arguments>),
    Logs(Box<logs::Arguments>),
    Exec(Box<exec::Arguments>),
    #[command(name = "port-forward")]
    PortForward(Box<port_forward::Arguments>),
    Cp(Box<cp::Arguments>),
    Describe(Box<describe::Arguments>),
    Doctor(doctor::Arguments),
    Apply(Box<apply::Arguments>),
    Interpret(Box<interpret::Arguments>),
    Promote(Box<promote::Arguments>),
    Top(Box<top::Arguments>),
    Search(Box<search::Arguments>),
    Patch(Box<patch::Arguments>),
    Diff(Box<diff::Arguments>),
    Wait(Box<wait::Arguments>),
    Scale(Box<scale::Arguments>),
    Rollout(Box<rollout::Arguments>),
    Label(Box<label::Arguments>),
    Annotate(Box<annotate::Arguments>),
    Completion(completion::Arguments),
    #[command(name = "api-resources")]
    ApiResources(Box<api_resources::Arguments>),
    #[command(name = "api-versions")]
    ApiVersions(api_versions::Arguments),
    Version(version::Arguments),
    #[command(hide = true)]
    Options(options::Arguments),
    #[command(name = "__complete", hide = true)]
    Complete(complete::Arguments),
}

/// Runs a command. `program` is its name in help and hints.
pub async fn run(command: Command, program: &str) -> anyhow::Result<()> {
    program::show_as(program);
    match command {
        Command::Explain(arguments) => explain::run(*arguments).await,
        Command::Create(arguments) => create::run(*arguments).await,
        Command::Edit(arguments) => edit::run(*arguments).await,
        Command::Attach(arguments) => attach::run(*arguments).await,
        Command::Exec(arguments) => exec::run(*arguments).await,
        Command::PortForward(arguments) => port_forward::run(*arguments).await,
        Command::Cp(arguments) => cp::run(*arguments).await,
        Command::Top(arguments) => top::run(*arguments).await,
        Command::Search(arguments) => search::run(*arguments).await,
        Command::Diff(arguments) => diff::run(*arguments).await,
        Command::Wait(arguments) => wait::run(*arguments).await,
        Command::Scale(arguments) => scale::run(*arguments).await,
        Command::Rollout(arguments) => rollout::run(*arguments).await,
        Command::Completion(arguments) => completion::run(&arguments),
        Command::Complete(arguments) => complete::run(arguments).await,
        Command::Get(arguments) => get::run(*arguments).await,
        Command::Delete(arguments) => delete::run(*arguments).await,
        Command::Init(arguments) => init::run(*arguments).await,
        Command::Deinit(arguments) => deinit::run(arguments).await,
        Command::Addons(arguments) => addons::run(&arguments).await,
        Command::Join(arguments) => join(arguments).await,
        Command::Unjoin(arguments) => unjoin(arguments).await,
        Command::Token(arguments) => token::run(arguments, program).await,
        Command::Register(arguments) => register::run(*arguments).await,
        Command::Unregister(arguments) => unregister::run(arguments).await,
        Command::Cordon(arguments) => cordon::cordon(arguments).await,
        Command::Uncordon(arguments) => cordon::uncordon(arguments).await,
        Command::Taint(arguments) => taint::run(arguments).await,
        Command::Logs(arguments) => logs::run(*arguments).await,
        Command::Describe(arguments) => describe::run(*arguments).await,
        Command::Doctor(arguments) => doctor::run(arguments).await,
        Command::Apply(arguments) => apply::run(*arguments).await,
        Command::Interpret(arguments) => interpret::run(*arguments).await,
        Command::Promote(arguments) => promote::run(*arguments).await,
        Command::Patch(arguments) => patch::run(*arguments).await,
        Command::Label(arguments) => label::run(*arguments).await,
        Command::Annotate(arguments) => annotate::run(*arguments).await,
        Command::ApiResources(arguments) => api_resources::run(*arguments).await,
        Command::ApiVersions(arguments) => api_versions::run(arguments).await,
        Command::Version(_) => {
            version::run(program);
            Ok(())
        }
        Command::Options(_) => {
            options::run(program);
            Ok(())
        }
    }
}
