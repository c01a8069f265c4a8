//! A toy engine defined in this file: discovered from fake processes, with named hops.

use adapter::discover::{
    Carries, Codec, Confidence, EngineKind, Engines, Evidence, FlagName, Function, HopSeen, Origin, Package, Program,
    Rank, Reading, Recognise, Role, RoleSource, RoleWithSource, Setting, Settings, Wire, python_program,
};
use engines::DISCOVERED;
use probe_user::discover::RoleSpec;
use probe_user::discover::fake::{FakeProcess, discover_engines};
use trace::path::Ends;

const MODEL: Role = Role::new(0, "model", Function::Source);
const FAN: Role = Role::new(1, "fan", Function::Intermediate);
const WEB: Role = Role::new(2, "web", Function::Receiver).main();

/// The models send tokens to the fan, which distributes them among web servers. They receive requests on a socket that a web server binds.
#[derive(Debug)]
struct Toy;

impl Recognise for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn title(&self) -> &'static str {
        "Toy"
    }

    fn package(&self) -> Option<Package> {
        Some(Package { name: "toy_engine", source: &[] })
    }

    fn roles(&self) -> &'static [Role] {
        &[MODEL, FAN, WEB]
    }

    fn role_with_alias(&self, word: &str) -> Option<Role> {
        (word == "http").then_some(WEB)
    }

    fn role_of_title(&self, title: &str) -> Option<(Role, Rank)> {
        let (word, rank) = title.strip_prefix("TOY::")?.split_once('#').unwrap_or_default();
        let role = [MODEL, FAN].into_iter().find(|role| role.word() == word)?;
        let rank = Rank { dp: rank.parse().ok(), ..Rank::default() };
        Some((role, rank))
    }

    fn recognise_command_line(&self, argv: &[String]) -> Option<(Role, &'static str)> {
        (python_program(argv)? == Program::Module("toy.serve")).then_some((WEB, "python -m toy.serve"))
    }

    fn flags(&self) -> &'static [FlagName] {
        const FLAGS: &[FlagName] = &[FlagName::value("--codec", "--codec")];
        FLAGS
    }

    fn hops(&self, wires: &[Wire<'_>], roles: &[Option<RoleWithSource>]) -> Vec<Option<Reading>> {
        let read = |wire: &Wire<'_>| {
            let ((from, by), (to, known)) = (roles[wire.connector?]?, roles[wire.acceptor]?);
            let confidence = Confidence::of_sources([by, known]);
            match (from, to) {
                (MODEL, FAN) | (FAN, WEB) => Some(Reading::forward(Carries::Output, confidence)),
                (MODEL, WEB) => Some(Reading::requests_back(confidence)),
                _ => None,
            }
        };
        wires.iter().map(read).collect()
    }

    fn settings(&self, evidence: &Evidence<'_>) -> Settings {
        let codec = evidence.flags.get("--codec").filter(|codec| *codec == "msgpack");
        Settings {
            codec: codec.map(|codec| Setting::new(Codec::Msgpack, evidence.argument(codec))),
            ..Settings::default()
        }
    }
}

/// The toy engine next to the known engines.
const ENGINES: Engines = &[DISCOVERED[0], DISCOVERED[1], EngineKind::new(&Toy)];

fn processes() -> Vec<FakeProcess> {
    vec![
        FakeProcess::launched(10, "python3 -m toy.serve --codec msgpack").with("toy", "2.1"),
        FakeProcess::titled(11, "TOY::model#0").child_of(10),
        FakeProcess::titled(12, "TOY::model#1").child_of(10),
        FakeProcess::titled(13, "TOY::fan#").child_of(10),
        FakeProcess::titled(20, "sglang::scheduler_TP0").child_of(22),
        FakeProcess::titled(21, "sglang::detokenizer").child_of(22),
        FakeProcess::unnamed(22),
    ]
}

const CONNECTED: [(usize, usize, &str); 7] = [
    (1, 3, "ipc:///tmp/toy/fan"),
    (2, 3, "ipc:///tmp/toy/fan"),
    (3, 0, "ipc:///tmp/toy/web"),
    (1, 0, "ipc:///tmp/toy/requests"),
    (2, 0, "ipc:///tmp/toy/requests"),
    (4, 5, "ipc:///tmp/detok"),
    (5, 6, "ipc:///tmp/tok"),
];

#[test]
fn its_processes_are_found_next_to_another_engine() {
    let engines = discover_engines(ENGINES, &processes(), &CONNECTED);
    let kinds: Vec<_> = engines.iter().map(|engine| engine.kind.unwrap().name()).collect();
    assert_eq!(kinds, ["toy", "sglang"]);
    let toy = &engines[0];
    let processes: Vec<_> = toy.processes.iter().map(|p| (p.id.pid, p.role, p.role_source, p.rank.dp)).collect();
    assert_eq!(
        processes,
        [
            (11, MODEL, RoleSource::Title, Some(0)),
            (12, MODEL, RoleSource::Title, Some(1)),
            (13, FAN, RoleSource::Title, None),
            (10, WEB, RoleSource::CommandLine, None),
        ]
    );
    assert_eq!(toy.main_process().unwrap().id.pid, 10);
    assert_eq!(toy.launcher.unwrap().word(), "toy");
    assert_eq!(toy.release().unwrap().value, "2.1");
    let codec = toy.settings.codec.as_ref().unwrap();
    assert_eq!(codec.value, Codec::Msgpack);
    assert!(matches!(codec.origin, Origin::Argument { pid: 10, .. }));
}

#[test]
fn its_hops_are_named_and_in_order() {
    let engines = discover_engines(ENGINES, &processes(), &CONNECTED);
    let routes = engines[0].routes();
    let seen: Vec<_> = routes.iter().map(|route| (route.ends, route.origin, route.last, route.lanes.len())).collect();
    assert_eq!(seen, [(Ends::new("model", "fan"), true, false, 2), (Ends::new("fan", "web"), false, true, 1)]);
    let requests = engines[0].hops.iter().filter(|hop| hop.carries == Carries::Requests);
    assert_eq!(requests.map(HopSeen::ends).collect::<Vec<_>>(), [Ends::new("web", "model"); 2]);
    let shown = engines[0].to_string();
    assert!(shown.starts_with("Toy 2.1, msgpack\n"), "{shown}");
}

#[test]
fn its_roles_are_accepted_on_the_command_line() {
    let read = |text: &str| RoleSpec::parse(text, ENGINES).map(|spec| spec.role);
    assert_eq!(read("7=fan"), Ok(Some(FAN)));
    assert_eq!(read("7=model"), Ok(Some(MODEL)));
    let message = read("7=modem").unwrap_err();
    assert!(message.contains("`modem` is not a role") && message.ends_with("model, fan, web"), "{message}");
}
