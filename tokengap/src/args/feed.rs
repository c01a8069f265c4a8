//! Flags of the feed (`--publish`), shared by all live sources.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Args;
use feed::{Key, PublishOptions};

use super::{at_least_one, size};
use crate::advice::missing;
use crate::named_file;

/// The flags of a feed, the same on every live source.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Feed")]
#[expect(clippy::doc_markdown, reason = "doc comments are the text of --help")]
pub(crate) struct FeedArgs {
    /// Publish the run for `tokengap watch`: tcp://127.0.0.1:5600. Port 0 chooses a free port and prints it.
    #[arg(long, value_name = "EP", value_parser = address)]
    pub(crate) publish: Option<SocketAddr>,

    /// Allow connections from other machines. Requires --feed-key, which encrypts the feed.
    #[arg(long, requires = "publish")]
    pub(crate) allow_remote: bool,

    /// File with the key shared with watchers: 64 hexadecimal digits, as printed by `openssl rand -hex 32`.
    #[arg(long, value_name = "FILE", requires = "publish")]
    pub(crate) feed_key: Option<PathBuf>,

    /// Name of this run on watchers' screens. Default: the host name, which in Kubernetes is the pod's name.
    #[arg(long, value_name = "NAME", requires = "publish")]
    pub(crate) feed_name: Option<String>,

    /// Maximum number of watchers. Further connections are refused.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub(crate) feed_watchers: usize,

    /// Maximum bytes queued for a slow watcher. Beyond it, messages are dropped and counted; the run is never delayed.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    pub(crate) feed_queue: u64,
}

/// Maximum time for a watcher to send its subscription.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum time a watcher may stall, for example under a debugger. It reconnects by itself.
const STALL: Duration = Duration::from_mins(1);

impl FeedArgs {
    /// Options of the feed; `None` if nothing is published. Refuses an address that others reach without a key.
    pub(crate) fn options(&self) -> anyhow::Result<Option<PublishOptions>> {
        let Some(address) = self.publish else {
            return Ok(None);
        };
        if !address.ip().is_loopback() {
            if !self.allow_remote {
                bail!(
                    "{address} is reachable from other machines: use --allow-remote and --feed-key FILE, or publish on 127.0.0.1 and forward the port (kubectl port-forward POD {0}:{0})",
                    address.port()
                );
            }
            if self.feed_key.is_none() {
                bail!(
                    "--allow-remote needs --feed-key FILE: create one with `openssl rand -hex 32 > FILE; chmod 600 FILE`"
                );
            }
        }
        Ok(Some(PublishOptions {
            address,
            key: self.feed_key.as_deref().map(read_key).transpose()?,
            pod: self.feed_name.clone().unwrap_or_else(machine),
            watchers: self.feed_watchers,
            queue_bytes: self.feed_queue as usize,
            patience: PATIENCE,
            stall: STALL,
        }))
    }
}

/// Reads the key of `--feed-key`.
pub(crate) fn read_key(path: &Path) -> anyhow::Result<Key> {
    ensure!(cfg!(feature = "encryption"), "--feed-key: {}", missing("encryption"));
    Ok(Key::of_file(path, named_file::open(path))?)
}

/// Host name of the machine.
fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Parses `tcp://ADDRESS:PORT` in ZMQ notation; `*` is every address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let hint = "expected an address like tcp://127.0.0.1:5600";
    let rest = text.strip_prefix("tcp://").unwrap_or(text);
    let (host, port) = rest.rsplit_once(':').ok_or_else(|| format!("{text:?} has no port; {hint}"))?;
    let port = port.parse().map_err(|_| format!("{port:?} is not a port; {hint}"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip: IpAddr = match host {
        "*" => IpAddr::from([0, 0, 0, 0]),
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => host.parse().map_err(|_| format!("{host:?} is not an address of this machine; {hint}"))?,
    };
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        feed: FeedArgs,
    }

    #[test]
    fn zmq_endpoint_syntax_is_accepted() {
        for (text, read) in [
            ("tcp://127.0.0.1:5600", "127.0.0.1:5600"),
            ("tcp://*:5600", "0.0.0.0:5600"),
            ("tcp://[::1]:0", "[::1]:0"),
            ("localhost:1", "127.0.0.1:1"),
        ] {
            assert_eq!(address(text).map(|a| a.to_string()).as_deref(), Ok(read));
        }
        for text in ["", "tcp://127.0.0.1", "tcp://pod-7:5600", "ipc:///tmp/feed", "tcp://1.2.3.4:99999"] {
            assert!(address(text).is_err_and(|why| why.contains("tcp://127.0.0.1:5600")), "{text}");
        }
    }

    #[test]
    fn remote_publishing_requires_a_key() {
        let open = |line: &[&str]| {
            let args = Line::parse_from(["feed"].iter().chain(line)).feed;
            args.options().map(|options| options.expect("--publish").address.port()).map_err(|e| format!("{e:#}"))
        };
        assert_eq!(open(&["--publish", "tcp://127.0.0.1:0"]), Ok(0));
        let refused = open(&["--publish", "tcp://0.0.0.0:0"]).unwrap_err();
        assert!(refused.contains("--allow-remote") && refused.contains("port-forward"), "{refused}");
        let refused = open(&["--publish", "tcp://0.0.0.0:0", "--allow-remote"]).unwrap_err();
        assert!(refused.contains("openssl"), "{refused}");
        let refused = open(&["--publish", "tcp://127.0.0.1:0", "--feed-key", "/nowhere"]).unwrap_err();
        let reason = if cfg!(feature = "encryption") { "/nowhere" } else { "--features encryption" };
        assert!(refused.contains(reason), "{refused}");
    }
}
