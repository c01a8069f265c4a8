//! The static program in a root folder that contains nothing but `/proc`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Such a root.
pub(crate) struct Fresh(PathBuf);

impl Fresh {
    pub(crate) fn new(program: &Path, dir: &Path) -> Result<Self> {
        let root = dir.join("fresh");
        fs::create_dir_all(root.join("proc"))?;
        fs::copy(program, root.join("tokengap"))?;
        Ok(Self(root))
    }

    fn run(&self, args: &[&str]) -> Result<Output> {
        // The mount disappears with the shell's mount namespace.
        let enter = "mount --bind /proc \"$0/proc\" && exec chroot \"$0\" /tokengap \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", enter]).arg(&self.0).args(args);
        command.output().context("starting unshare")
    }

    /// Standard output of a command that must succeed.
    fn say(&self, args: &[&str]) -> Result<String> {
        let out = self.run(args)?;
        ensure!(
            out.status.success(),
            "in a root with only /proc, tokengap {args:?} ended with {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(String::from_utf8(out.stdout)?)
    }

    /// Checks everything that needs no engine.
    pub(crate) fn alone(&self, message: &Path) -> Result<()> {
        let version = self.say(&["--version"])?;
        ensure!(
            version.trim() == concat!("tokengap ", env!("CARGO_PKG_VERSION")),
            "it is {version}"
        );
        let live = self.json(&[
            "demo",
            "--headless",
            "--json",
            "--duration",
            "3s",
            "--record",
            "/run.tgap",
        ])?;
        let told = self.json(&["report", "/run.tgap", "--format", "json"])?;
        for place in [
            "/requests/seen",
            "/tokens/sent",
            "/tokens/delivered",
            "/chunks/tokens_lost",
        ] {
            let (live, told) = (live.pointer(place), told.pointer(place));
            ensure!(
                live.is_some_and(|n| n.as_u64() > Some(0)) && live == told,
                "{place} is {live:?} live and {told:?} in the report of its recording"
            );
        }
        fs::copy(message, self.0.join("message.pkl"))?;
        let decoded = self.json(&["decode", "--json", "/message.pkl"])?;
        ensure!(
            decoded["chunks"].as_array().is_some_and(|c| c.len() == 3),
            "decoded: {decoded}"
        );
        println!("a root with only /proc: version, demo, report, decode");
        Ok(())
    }

    /// Report of an attach to the running engine.
    pub(crate) fn attach(&self) -> Result<Value> {
        self.json(super::ATTACH)
    }

    fn json(&self, args: &[&str]) -> Result<Value> {
        let said = self.say(args)?;
        serde_json::from_str(&said).with_context(|| format!("tokengap {args:?} said no JSON: {said}"))
    }
}
