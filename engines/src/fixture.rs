//! Main processes for tests of settings.

use adapter::discover::{Evidence, Flags, Launcher, Origin, PackageRelease, Setting};

use crate::DISCOVERED;

/// Passes the evidence of a main process with this command and these `(engine, release)` pairs to `read`, and returns its result. The
/// process has an empty environment and no visible hops.
pub(crate) fn with_evidence_of_command<T>(
    command: &str,
    releases: &[(&str, &str)],
    read: impl FnOnce(&Evidence<'_>) -> T,
) -> T {
    let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
    let flags = Flags::parse(&argv, DISCOVERED.iter().flat_map(|engine| engine.flags()));
    let releases = releases.iter().map(|(name, release)| PackageRelease {
        engine: *DISCOVERED.iter().find(|engine| engine.name() == *name).unwrap(),
        // No test depends on the origin.
        release: Setting::new((*release).to_owned(), Origin::Sockets),
    });
    let releases: Vec<PackageRelease> = releases.collect();
    read(&Evidence {
        pid: 1,
        launcher: Launcher::of_command(&argv, DISCOVERED),
        flags: &flags,
        environment: Some(&[]),
        releases: &releases,
        python: None,
        hops: &[],
    })
}
