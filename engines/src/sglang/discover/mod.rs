//! Recognition of the processes of SGLang 0.4.0 to 0.5.23.

mod hops;
mod infer;
mod launch;
pub mod role;
pub(crate) mod streaming;

use std::path::Path;

use adapter::discover::{
    Edge, Evidence, FlagName, Function, InnerServer, Node, Package, Rank, Reading, Recognise, Role, RoleWithSource,
    Settings, Wire, flag_value, port_of_command,
};
use trace::event::Kind;

pub(crate) use launch::SKIP_TOKENIZER_INIT;
use streaming::LauncherDefaults;

/// Port of a server without `--port`.
const DEFAULT_PORT: u16 = 30_000;

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
        Some(Package { name: "sglang", source: &["sglang/_version.py", "sglang/version.py"] })
    }

    fn roles(&self) -> &'static [Role] {
        role::ROLES
    }

    fn role_with_alias(&self, word: &str) -> Option<Role> {
        role::role_of_alias(word)
    }

    fn role_of_title(&self, title: &str) -> Option<(Role, Rank)> {
        role::role_of_title(title)
    }

    fn recognise_command_line(&self, argv: &[String]) -> Option<(Role, &'static str)> {
        launch::is_server_command(argv).then_some((role::TOKENIZER, "python -m sglang.launch_server"))
    }

    fn flags(&self) -> &'static [FlagName] {
        launch::FLAGS
    }

    fn served_port(&self, argv: &[String]) -> Option<u16> {
        if launch::is_server_command(argv) { port_of_command(argv, DEFAULT_PORT) } else { None }
    }

    fn model<'a>(&self, argv: &'a [String]) -> Option<&'a str> {
        flag_value(argv, "--model-path").or_else(|| flag_value(argv, "--model"))
    }

    fn inner_server(&self) -> Option<InnerServer> {
        Some(INNER_SERVER)
    }

    fn variables(&self) -> &'static [&'static str] {
        &[streaming::PICKLE_SWITCH, streaming::RUST_SERVER]
    }

    fn infer_roles(&self, nodes: &[Node], edges: &[Edge], roles: &mut [Option<RoleWithSource>]) {
        infer::infer_roles(nodes, edges, roles);
    }

    fn hops(&self, wires: &[Wire<'_>], roles: &[Option<RoleWithSource>]) -> Vec<Option<Reading>> {
        hops::read_wires(wires, roles)
    }

    /// Settings of an engine, derived from what was found of its process.
    fn settings(&self, evidence: &Evidence<'_>) -> Settings {
        // Another launcher may leave the settings open or decide them itself.
        let defaults = if evidence.is_launched_by(self) {
            LauncherDefaults::of_server(evidence)
        } else {
            LauncherDefaults::default()
        };
        streaming::infer_settings(evidence, &defaults)
    }

    /// Role of the processes that send this kind of message; `None` if several roles do.
    fn sender_role_of(&self, kind: Kind) -> Option<Role> {
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

/// Role in hop names of the Rust server of 0.5.17 and later (`SGLANG_RUST_SERVER=1`): threads in a scheduler that tokenize, detokenize and
/// serve HTTP. Each scheduler that serves clients has loaded its extension module. No process has the role.
const SERVER: Role = Role::new(7, "server", Function::Receiver);

const INNER_SERVER: InnerServer = InnerServer {
    role: SERVER,
    is_extension: is_rust_server_extension,
    // The second name up to 0.5.18.
    methods: &["push_decode_result_batch", "push_batch"],
};

/// Folder of the extension, and the beginning of its file name. The second row is that of 0.5.17.
const MODULES: [(&str, &str); 2] = [("sglang/srt/rust_extensions", "_server."), ("sglang/srt/server", "_core.")];

/// Whether the mapped file is the extension with SGLang's Rust server.
fn is_rust_server_extension(mapped_file: &Path) -> bool {
    let Some((folder, name)) = mapped_file.parent().zip(mapped_file.file_name()) else { return false };
    let name = name.as_encoded_bytes();
    MODULES
        .iter()
        .any(|(module_folder, name_start)| folder.ends_with(module_folder) && name.starts_with(name_start.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_is_recognised_in_every_release() {
        let is = |path: &str| is_rust_server_extension(Path::new(path));
        let packages = "/opt/venv/lib/python3.11/site-packages/sglang/srt";
        assert!(is(&format!("{packages}/rust_extensions/_server.cpython-311-x86_64-linux-gnu.so")));
        assert!(is(&format!("{packages}/server/_core.cpython-311-x86_64-linux-gnu.so")));
        assert!(!is(&format!("{packages}/grpc/_core.cpython-311-x86_64-linux-gnu.so")));
        assert!(!is(&format!("{packages}/rust_extensions/_multimodal.cpython-311-x86_64-linux-gnu.so")));
        assert!(!is("/usr/lib/_server.so") && !is("/"));
    }
}
