//! The commands, one file each; what they print.
//!
//! The same commands are a program of their own (`karmadactl`, `kubectl-karmada`: [`alone`]) and stand beside the roles
//! of `karmada`. They all reach the control plane and its members through `server`, find out what is meant through
//! `select`, and print through `print`.

mod annotate;
mod api_resources;
mod api_versions;
mod apply;
mod clients;
mod cordon;
mod delete;
mod describe;
mod discovery;
mod failure;
mod get;
mod interpret;
mod join;
mod label;
mod logs;
mod manifests;
mod marks;
mod options;
mod output;
mod patch;
mod print;
mod program;
mod promote;
mod select;
mod server;
mod taint;
mod token;
mod unjoin;
mod version;

pub use clients::{ControlArguments, config};
pub use failure::told;
pub use join::{JoinArguments, enrol, join};
pub use program::{alone, is_command, normalize, refuse};
pub use unjoin::{UnjoinArguments, unjoin};

/// A command of the CLI.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    Get(Box<get::Arguments>),
    Delete(Box<delete::Arguments>),
    Join(JoinArguments),
    Unjoin(UnjoinArguments),
    Token(token::Arguments),
    Cordon(cordon::CordonArguments),
    Uncordon(cordon::UncordonArguments),
    Taint(taint::Arguments),
    Logs(Box<logs::Arguments>),
    Describe(Box<describe::Arguments>),
    Apply(Box<apply::Arguments>),
    Interpret(Box<interpret::Arguments>),
    Promote(Box<promote::Arguments>),
    Patch(Box<patch::Arguments>),
    Label(Box<label::Arguments>),
    Annotate(Box<annotate::Arguments>),
    #[command(name = "api-resources")]
    ApiResources(Box<api_resources::Arguments>),
    #[command(name = "api-versions")]
    ApiVersions(api_versions::Arguments),
    Version(version::Arguments),
    #[command(hide = true)]
    Options(options::Arguments),
}

/// Runs a command. `program` is the name that help and hints call it by.
pub async fn run(command: Command, program: &str) -> anyhow::Result<()> {
    match command {
        Command::Get(arguments) => get::run(*arguments).await,
        Command::Delete(arguments) => delete::run(*arguments).await,
        Command::Join(arguments) => join(arguments).await,
        Command::Unjoin(arguments) => unjoin(arguments).await,
        Command::Token(arguments) => token::run(arguments, program).await,
        Command::Cordon(arguments) => cordon::cordon(arguments).await,
        Command::Uncordon(arguments) => cordon::uncordon(arguments).await,
        Command::Taint(arguments) => taint::run(arguments).await,
        Command::Logs(arguments) => logs::run(*arguments).await,
        Command::Describe(arguments) => describe::run(*arguments).await,
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
