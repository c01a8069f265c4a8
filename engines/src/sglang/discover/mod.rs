//! Recognition of the processes of SGLang 0.4.0 to 0.5.23.

mod hops;
mod infer;
mod inner_server;
mod launch;
pub mod role;
pub(crate) mod streaming;

use probe_user::discover::{
    Edge, Evidence, FlagName, InnerServer, Node, Package, Rank, Reading, Recognise, Role, RoleWithSource, Settings,
    Wire,
};
use trace::event::Kind;

pub(crate) use launch::SKIP_TOKENIZER_INIT;
use streaming::Unset;

/// Recognises SGLang's processes.
#[derive(Clone, Copy, Debug)]
pub struct Sglang;

impl Recognise for Sglang {
    fn name(&self) -> &'static str {
        "sglang"
    }

    fn title(&self) -> &'static str {
        "SGLang"
    }

    fn package(&self) -> Option<Package> {
        Some(Package {
            name: "sglang",
            source: &["sglang/_version.py", "sglang/version.py"],
        })
    }

    fn roles(&self) -> &'static [Role] {
        role::ROLES
    }

    fn alias(&self, word: &str) -> Option<Role> {
        role::alias(word)
    }

    fn role_of_title(&self, title: &str) -> Option<(Role, Rank)> {
        role::of_title(title)
    }

    fn launch(&self, argv: &[String]) -> Option<(Role, &'static str)> {
        launch::is_main(argv).then_some((role::TOKENIZER, "python -m sglang.launch_server"))
    }

    fn flags(&self) -> &'static [FlagName] {
        launch::FLAGS
    }

    fn inner_server(&self) -> Option<InnerServer> {
        Some(inner_server::INNER_SERVER)
    }

    fn variables(&self) -> &'static [&'static str] {
        &[streaming::PICKLE_SWITCH, streaming::RUST_SERVER]
    }

    fn infer(&self, nodes: &[Node], edges: &[Edge], roles: &mut [Option<RoleWithSource>]) {
        infer::infer(nodes, edges, roles);
    }

    fn hops(&self, wires: &[Wire<'_>], roles: &[Option<RoleWithSource>]) -> Vec<Option<Reading>> {
        hops::read(wires, roles)
    }

    fn settings(&self, evidence: &Evidence<'_>) -> Settings {
        let unset = if evidence.is_launched_by(self) {
            Unset::of_server(evidence)
        } else {
            Unset::default()
        };
        streaming::settings(evidence, &unset)
    }

    fn sender_of(&self, kind: Kind) -> Option<Role> {
        match kind {
            Kind::TokenIds | Kind::Embedding => Some(role::SCHEDULER),
            Kind::Text => Some(role::DETOKENIZER),
            Kind::Multimodal | Kind::Abort | Kind::Control | Kind::Failed => None,
        }
    }

    fn receiver(&self) -> Option<Role> {
        Some(role::TOKENIZER)
    }
}
