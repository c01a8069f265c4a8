//! Processes of an engine: how discovery recognises them, their roles, and the hops and settings that follow.

mod groups;
mod hop;
mod launch;
mod python_version;
mod recognise;
mod role;
mod setting;

pub use groups::connected_groups;
pub use hop::{Carries, Confidence, End, HopSeen};
pub use launch::{FlagName, Flags, Program, flag_value, port_of_command, python_program};
pub use python_version::PythonVersion;
pub use recognise::{
    Codec, Disaggregation, Edge, EngineKind, Engines, Evidence, InnerServer, Launcher, Node, Package, PackageRelease,
    Reading, Recognise, RoleWithSource, Settings, Wire, role_among, role_words,
};
pub use role::{Function, Rank, Role, RoleSource};
pub use setting::{Origin, Setting};
