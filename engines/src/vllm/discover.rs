//! Recognition of the processes of vLLM 0.6.4 to 0.33.0.

use std::path::Path;

use adapter::discover::{
    Carries, Codec, Confidence, Edge, Evidence, Function, Node, Origin, Package, Program, Rank, Reading, Recognise,
    Role, RoleSource, RoleWithSource, Setting, Settings, Wire, flag_value, port_of_command, python_program,
};
use trace::engine::Mode;
use trace::event::Kind;

use super::NAME;
use super::facts::waiter_of_releases;

/// Runs the scheduler and the model; one for each data-parallel rank.
pub const ENGINE_CORE: Role = Role::new(0, "engine-core", Function::Source);
/// Balances requests between data-parallel ranks.
pub const COORDINATOR: Role = Role::new(1, "coordinator", Function::Control);
/// Starts several API servers, or the Rust frontend, and serves no client itself.
pub(crate) const LAUNCHER: Role = Role::new(2, "launcher", Function::Control).main();
/// Serves clients.
pub const API_SERVER: Role = Role::new(3, "api-server", Function::Receiver).main();

/// Port of a server without `--port`.
const DEFAULT_PORT: u16 = 8_000;

const ROLES: &[Role] = &[ENGINE_CORE, COORDINATOR, LAUNCHER, API_SERVER];

/// Recognises vLLM's processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VllmServer;

impl Recognise for VllmServer {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "vLLM"
    }

    fn package(&self) -> Option<Package> {
        Some(Package { name: "vllm", source: &["vllm/_version.py"] })
    }

    fn roles(&self) -> &'static [Role] {
        ROLES
    }

    /// Role with this other name in `--pid PID=ROLE`. `None` if no role has it.
    fn role_with_alias(&self, word: &str) -> Option<Role> {
        match word {
            "engine" | "enginecore" => Some(ENGINE_CORE),
            "apiserver" | "vllm-rs" => Some(API_SERVER),
            "dp-coordinator" => Some(COORDINATOR),
            _ => None,
        }
    }

    fn role_of_title(&self, title: &str) -> Option<(Role, Rank)> {
        role_of_title(title)
    }

    /// Role of a process with this command line, and the command for display without its arguments. `None` for another command.
    fn recognise_command_line(&self, argv: &[String]) -> Option<(Role, &'static str)> {
        if is_rust_frontend(argv) {
            return Some((API_SERVER, "vllm-rs frontend"));
        }
        if is_dynamo_worker(argv) {
            return Some((API_SERVER, "python -m dynamo.vllm"));
        }
        is_server(argv).then_some((API_SERVER, "vllm serve"))
    }

    /// Port that a server's command line names, or the default one; `None` for another command.
    fn served_port(&self, argv: &[String]) -> Option<u16> {
        if !is_server(argv) && !is_rust_frontend(argv) {
            return None;
        }
        port_of_command(argv, DEFAULT_PORT)
    }

    /// Model that a server's or a worker's command line names. `None` for another command, and for one without a model.
    fn model<'a>(&self, argv: &'a [String]) -> Option<&'a str> {
        if !is_server(argv) && !is_dynamo_worker(argv) {
            return None;
        }
        model_of_command(argv)
    }

    fn tokenizer<'a>(&self, argv: &'a [String]) -> Option<&'a str> {
        tokenizer_of_command(argv)
    }

    fn infer_roles(&self, nodes: &[Node], edges: &[Edge], roles: &mut [Option<RoleWithSource>]) {
        mark_launchers(nodes, roles);
        infer_untitled_engines(nodes, edges, roles);
    }

    /// An engine and an API server share two connections, one for requests and one for output. Both end in sockets of the API server (up to
    /// 0.8.2: of the engine) with random names, so that only their traffic tells them apart.
    fn hops(&self, wires: &[Wire<'_>], roles: &[Option<RoleWithSource>]) -> Vec<Option<Reading>> {
        wires.iter().map(|wire| interpret_wire(wire, roles)).collect()
    }

    /// Settings of an engine, all of which follow from its release. All are unknown if the release is.
    fn settings(&self, evidence: &Evidence<'_>) -> Settings {
        let Some(installed) = evidence.releases.iter().find(|known| known.engine.name() == NAME) else {
            return Settings::default();
        };
        let release = &installed.release;
        let origin = Origin::Release(format!("vLLM {}", release.value));
        Settings {
            codec: Some(Setting::new(Codec::Msgpack, origin.clone())),
            mode: Some(Setting::new(Mode::Incremental, origin.clone())),
            waiter: waiter_of_releases(&release.value).map(|waiter| Setting::new(waiter, origin)),
            ..Settings::default()
        }
    }

    fn sender_role_of(&self, kind: Kind) -> Option<Role> {
        matches!(kind, Kind::TokenIds | Kind::Embedding).then_some(ENGINE_CORE)
    }

    fn receiver(&self) -> Option<Role> {
        Some(API_SERVER)
    }
}

/// Role and rank in a process title of 0.10.1 and later, such as `VLLM::EngineCore_DP1`, where `VLLM_PROCESS_NAME_PREFIX` may change the
/// first word. `None` for any other title.
fn role_of_title(title: &str) -> Option<(Role, Rank)> {
    const TITLES: [(&str, Role); 3] =
        [("EngineCore", ENGINE_CORE), ("APIServer", API_SERVER), ("DPCoordinator", COORDINATOR)];
    let (_prefix, title) = title.trim_end().split_once("::")?;
    let (rest, role) = TITLES.iter().find_map(|(name, role)| Some((title.strip_prefix(name)?, *role)))?;
    let is_whole_name = rest.is_empty() || rest.starts_with('_');
    if !is_whole_name {
        return None;
    }
    let mut rank = Rank::default();
    // Other roles may have numbers of another meaning.
    if role == ENGINE_CORE {
        rank.dp = rest.split('_').find_map(|part| part.strip_prefix("DP")?.parse().ok());
    }
    Some((role, rank))
}

/// Determines the direction of a connection from the roles of both processes: from the engine, as output flows, whichever side connected.
/// Whether it carries output or requests is not known from the roles. `None` for a connection of other roles.
fn interpret_wire(wire: &Wire<'_>, roles: &[Option<RoleWithSource>]) -> Option<Reading> {
    // Both processes must be known, each with its role.
    let (connector_role, connector_source) = roles[wire.connector?]?;
    let (acceptor_role, acceptor_source) = roles[wire.acceptor]?;
    let confidence = Confidence::of_sources([connector_source, acceptor_source]);
    let reading = Reading::forward(Carries::Unknown, confidence);
    match (connector_role, acceptor_role) {
        // The coordinator receives only statistics.
        (ENGINE_CORE, API_SERVER | COORDINATOR) => Some(reading),
        (API_SERVER, ENGINE_CORE) => Some(Reading { reversed: true, ..reading }),
        _ => None,
    }
}

/// Whether this command line starts a server of vLLM: by a Python module, a script, or the installed command with `serve`.
fn is_server(argv: &[String]) -> bool {
    // `vllm bench serve` is a client.
    let is_benchmark = argv.iter().any(|argument| argument == "bench");
    let serves = argv.iter().any(|argument| argument == "serve") && !is_benchmark;
    match python_program(argv) {
        Some(Program::Module("vllm.entrypoints.openai.api_server")) => true,
        Some(Program::Module("vllm" | "vllm.entrypoints.cli.main")) => serves,
        Some(Program::Script(script)) => {
            let path = Path::new(script);
            let is_api_server = path.ends_with("vllm/entrypoints/openai/api_server.py");
            let is_installed_command = path.file_name().is_some_and(|name| name == "vllm");
            is_api_server || (is_installed_command && serves)
        }
        _ => false,
    }
}

/// Tokenizer that a server's command line names: `--tokenizer`, otherwise the model. `None` for another command, and for a tokenizer in
/// another format than that of Hugging Face.
fn tokenizer_of_command(argv: &[String]) -> Option<&str> {
    if !is_server(argv) {
        return None;
    }
    let mode = flag_value(argv, "--tokenizer-mode").unwrap_or("auto");
    let is_of_hugging_face = matches!(mode, "auto" | "hf" | "slow");
    if !is_of_hugging_face {
        return None;
    }
    flag_value(argv, "--tokenizer").or_else(|| model_of_command(argv))
}

/// Model that a command line names: `--model`, otherwise the argument after `serve`. `None` if it names none.
fn model_of_command(argv: &[String]) -> Option<&str> {
    if let Some(model) = flag_value(argv, "--model") {
        return Some(model);
    }
    let serve_index = argv.iter().position(|argument| argument == "serve")?;
    let behind_serve = argv.get(serve_index + 1)?;
    let is_flag = behind_serve.starts_with('-');
    if is_flag { None } else { Some(behind_serve) }
}

/// Whether this is the command line of a Dynamo worker. It has the client of the engine core that API servers have, and answers Dynamo's
/// frontend.
fn is_dynamo_worker(argv: &[String]) -> bool {
    let Some(Program::Module(module)) = python_program(argv) else { return false };
    module == "dynamo.vllm" || module.starts_with("dynamo.vllm.")
}

/// Whether this is the Rust frontend (0.22 and later), which has no libzmq.
fn is_rust_frontend(argv: &[String]) -> bool {
    let [program, command, ..] = argv else { return false };
    let is_vllm_rs = Path::new(program).file_name().is_some_and(|name| name == "vllm-rs");
    is_vllm_rs && command == "frontend"
}

/// Marks the parent of an API server as a launcher, if the parent was recognised as a server by its command line.
fn mark_launchers(nodes: &[Node], roles: &mut [Option<RoleWithSource>]) {
    for child in nodes {
        // The child's own title or command line says that it is an API server.
        let Some((API_SERVER, RoleSource::Title | RoleSource::CommandLine)) = child.stated else { continue };
        let Some(parent) = child.parent else { continue };
        // A launcher has the command line of a server and serves no clients itself.
        if let Some((API_SERVER, source @ RoleSource::CommandLine)) = roles[parent] {
            roles[parent] = Some((LAUNCHER, source));
        }
    }
}

/// Finds the engines of releases before 0.10.1, which have no title. Such an engine uses ZMQ, is a child of the API server, and is
/// connected with it.
fn infer_untitled_engines(nodes: &[Node], edges: &[Edge], roles: &mut [Option<RoleWithSource>]) {
    for child in 0..nodes.len() {
        let Some(parent) = nodes[child].parent else { continue };
        let is_child_of_server = matches!(roles[parent], Some((API_SERVER, _)));
        let is_connected = edges.contains(&(child, parent)) || edges.contains(&(parent, child));
        let has_no_role = roles[child].is_none();
        if has_no_role && nodes[child].zmq && is_child_of_server && is_connected {
            roles[child] = Some((ENGINE_CORE, RoleSource::Sockets));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_of_the_releases() {
        let dp = |dp| Rank { dp, ..Rank::default() };
        for (title, expected) in [
            ("VLLM::EngineCore", Some((ENGINE_CORE, dp(None)))),
            ("VLLM::EngineCore_DP1", Some((ENGINE_CORE, dp(Some(1))))),
            ("VLLM::EngineCore_DP3_EP3 ", Some((ENGINE_CORE, dp(Some(3))))),
            ("prod::EngineCore", Some((ENGINE_CORE, dp(None)))),
            ("VLLM::APIServer_0", Some((API_SERVER, dp(None)))),
            ("VLLM::DPCoordinator", Some((COORDINATOR, dp(None)))),
            ("VLLM::Worker_TP0", None),
            ("VLLM::EngineCores", None),
            ("EngineCore", None),
            ("sglang::scheduler_TP0", None),
            ("", None),
        ] {
            assert_eq!(role_of_title(title), expected, "{title}");
        }
    }

    #[test]
    fn ports_of_command_lines() {
        for (line, expected) in [
            ("python3 /venv/bin/vllm serve org/model --port 8101", Some(8101)),
            ("python3 /venv/bin/vllm serve org/model --port=8102", Some(8102)),
            ("python3 /venv/bin/vllm serve org/model", Some(8000)),
            ("python3 /venv/bin/vllm serve org/model --config c.yaml", None),
            ("python3 -m dynamo.vllm --model org/model", None),
        ] {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(VllmServer.served_port(&argv), expected, "{line}");
        }
    }

    #[test]
    fn tokenizers_of_command_lines() {
        for (line, expected) in [
            ("python3 /venv/bin/vllm serve org/model --port 1", Some("org/model")),
            ("python3 /venv/bin/vllm serve --model=m --tokenizer t", Some("t")),
            ("python3 -m vllm.entrypoints.openai.api_server --model /m --tokenizer-mode auto", Some("/m")),
            ("python3 /venv/bin/vllm serve m --tokenizer-mode mistral", None),
            ("python3 /venv/bin/vllm serve --config c.yaml", None),
            ("python3 /venv/bin/vllm bench serve --model m", None),
        ] {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(tokenizer_of_command(&argv), expected, "{line}");
        }
    }

    #[test]
    fn commands_of_servers() {
        for (line, expected) in [
            ("/opt/venv/bin/python3 /opt/venv/bin/vllm serve model --port 1", true),
            ("python -m vllm.entrypoints.openai.api_server --model x", true),
            ("python3 -m vllm.entrypoints.cli.main serve x", true),
            ("/opt/venv/bin/python3 /opt/venv/bin/vllm bench serve", false),
            ("/opt/venv/bin/python3 /opt/venv/bin/vllm chat", false),
            ("/venv/lib/vllm/vllm-rs frontend --listen-fd 3", true),
            ("/venv/lib/vllm/vllm-rs bench", false),
            ("python3 -m dynamo.vllm --model x", true),
            ("python3 -m dynamo.frontend --http-port 8000", false),
            ("bash -c vllm serve", false),
        ] {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(VllmServer.recognise_command_line(&argv).is_some(), expected, "{line}");
        }
    }
}
