//! A minimal engine for tests of the generic parts.

use adapter::discover::{EngineKind, Function, Package, Recognise, Role};

pub(crate) const TOY: EngineKind = EngineKind::new(&Toy);
pub(crate) const SOURCE: Role = Role::new(0, "source", Function::Source);
pub(crate) const SERVER: Role = Role::new(1, "server", Function::Receiver).main();

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
        &[SOURCE, SERVER]
    }

    fn role_with_alias(&self, word: &str) -> Option<Role> {
        (word == "http-server").then_some(SERVER)
    }

    fn recognise_command_line(&self, argv: &[String]) -> Option<(Role, &'static str)> {
        (argv.first()? == "toy-serve").then_some((SERVER, "toy-serve"))
    }

    fn variables(&self) -> &'static [&'static str] {
        &["TOY_CODEC"]
    }

    fn is_frontend(&self, argv: &[String]) -> bool {
        argv.first().is_some_and(|command| command == "toy-frontend")
    }
}
