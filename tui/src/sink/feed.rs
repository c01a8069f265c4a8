//! `--publish`: the feed for `tokengap watch`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use feed::{Image, Key, PublishOptions, Published, Publisher, Telling};
use trace::record::Header;
use trace::report::ReportInput;
use trace::{Analysis, Event, MonoNs};

use super::args::size;
use crate::state::Model;

/// The flags of a feed, the same on every live source.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Feed")]
#[expect(clippy::doc_markdown, reason = "the endpoints are help for a terminal")]
pub(crate) struct FeedArgs {
    /// Publish the run for `tokengap watch`: tcp://127.0.0.1:5600. Port 0 takes a free one, and says which.
    #[arg(long, value_name = "EP", value_parser = address)]
    pub(crate) publish: Option<SocketAddr>,

    /// Let others than this machine connect. Asks for a key: the feed is encrypted then.
    #[arg(long, requires = "publish")]
    pub(crate) allow_remote: bool,

    /// The key that watchers must have, too: a file of 64 hexadecimal digits, as `openssl rand -hex 32` makes them.
    #[arg(long, value_name = "FILE", requires = "publish")]
    pub(crate) feed_key: Option<PathBuf>,

    /// What watchers call this run. By default the machine's name, which in Kubernetes is the pod's.
    #[arg(long, value_name = "NAME", requires = "publish")]
    pub(crate) feed_name: Option<String>,

    /// Most watchers at once; further ones are refused.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = crate::cli::at_least_one)]
    pub(crate) feed_watchers: usize,

    /// What may wait for a watcher that is slow. Beyond it messages are dropped and counted; the run is never held up.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    pub(crate) feed_queue: u64,
}

/// Maximum time for a watcher to send its subscription.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum time a watcher may stall, for example under a debugger. It reconnects by itself.
const STALL: Duration = Duration::from_mins(1);

/// A published run.
pub(super) struct Feed {
    publisher: Publisher,
    /// Time series for watchers that join late.
    past: Model,
}

/// State of the feed on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Publishing {
    pub(crate) address: String,
    pub(crate) watchers: u64,
    pub(crate) dropped: u64,
    pub(crate) refused: u64,
}

impl Feed {
    /// Starts to listen, if the address and key are permitted.
    pub(super) fn open(args: &FeedArgs, address: SocketAddr, header: &Header) -> anyhow::Result<Self> {
        if !address.ip().is_loopback() {
            if !args.allow_remote {
                bail!(
                    "{address} can be reached by others: give --allow-remote and --feed-key FILE, or publish on 127.0.0.1 and \
                     forward the port (kubectl port-forward POD {0}:{0})",
                    address.port()
                );
            }
            if args.feed_key.is_none() {
                bail!(
                    "--allow-remote needs --feed-key FILE: make one with `openssl rand -hex 32 > FILE; chmod 600 FILE`"
                );
            }
        }
        let key = args.feed_key.as_deref().map(Key::read).transpose()?;
        let options = PublishOptions {
            address,
            key,
            pod: args.feed_name.clone().unwrap_or_else(machine),
            watchers: args.feed_watchers,
            queue_bytes: args.feed_queue as usize,
            patience: PATIENCE,
            stall: STALL,
        };
        let publisher = Publisher::start(options, header.clone()).context("nothing is published")?;
        Ok(Self {
            publisher,
            past: Model::default(),
        })
    }

    pub(super) fn event(&mut self, event: &Event<'_>) {
        self.publisher.event(event);
    }

    pub(super) fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        let Self { publisher, past } = self;
        past.remember(analysis);
        publisher.tick(
            now,
            &Telling {
                analysis,
                input,
                history: &|| Image::of(&past.past()),
            },
        );
    }

    pub(super) fn trouble(&mut self) -> Option<String> {
        self.publisher.trouble()
    }

    pub(super) fn publishing(&self) -> Publishing {
        let Published {
            watchers,
            dropped,
            refused,
            ..
        } = self.publisher.status();
        Publishing {
            address: self.publisher.address().to_string(),
            watchers,
            dropped,
            refused,
        }
    }

    /// Number of refused connections, for the report.
    pub(super) fn refused(&self) -> Option<String> {
        let refused = self.publisher.status().refused;
        (refused > 0).then(|| {
            format!(
                "feed: {} connections were refused: no room, no key, no feed's protocol, or too slow; see who reaches the address \
                 of --publish",
                crate::state::units::count(refused)
            )
        })
    }

    pub(super) fn finish(self, analysis: &Analysis, input: &dyn Fn() -> ReportInput) -> Option<String> {
        let Self { publisher, past } = self;
        let Published { dropped, .. } = publisher.finish(&Telling {
            analysis,
            input,
            history: &|| Image::of(&past.past()),
        });
        let messages = crate::state::units::count(dropped);
        (dropped > 0).then(|| format!("feed: {messages} messages were dropped for watchers that were too slow"))
    }
}

/// Host name of the machine.
fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Parses `tcp://ADDRESS:PORT` in ZMQ notation; `*` is every address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let hint = "write it like tcp://127.0.0.1:5600";
    let rest = text.strip_prefix("tcp://").unwrap_or(text);
    let (host, port) = rest
        .rsplit_once(':')
        .ok_or_else(|| format!("{text:?} has no port; {hint}"))?;
    let port = port.parse().map_err(|_| format!("{port:?} is no port; {hint}"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip: IpAddr = match host {
        "*" => IpAddr::from([0, 0, 0, 0]),
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => host
            .parse()
            .map_err(|_| format!("{host:?} is no address of this machine; {hint}"))?,
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
    fn endpoints_are_read_as_zmq_writes_them() {
        for (text, read) in [
            ("tcp://127.0.0.1:5600", "127.0.0.1:5600"),
            ("tcp://*:5600", "0.0.0.0:5600"),
            ("tcp://[::1]:0", "[::1]:0"),
            ("localhost:1", "127.0.0.1:1"),
        ] {
            assert_eq!(address(text).map(|a| a.to_string()).as_deref(), Ok(read));
        }
        for text in [
            "",
            "tcp://127.0.0.1",
            "tcp://pod-7:5600",
            "ipc:///tmp/feed",
            "tcp://1.2.3.4:99999",
        ] {
            assert!(
                address(text).is_err_and(|why| why.contains("tcp://127.0.0.1:5600")),
                "{text}"
            );
        }
    }

    #[test]
    fn others_are_let_in_only_with_a_key() {
        let open = |line: &[&str]| {
            let args = Line::parse_from(["feed"].iter().chain(line)).feed;
            let header = Header::of("demo", trace::Config::default());
            let opened = args.publish.map(|address| Feed::open(&args, address, &header));
            opened
                .expect("--publish")
                .map(|feed| feed.publishing().watchers)
                .map_err(|e| format!("{e:#}"))
        };
        assert_eq!(open(&["--publish", "tcp://127.0.0.1:0"]), Ok(0));
        let refused = open(&["--publish", "tcp://0.0.0.0:0"]).unwrap_err();
        assert!(
            refused.contains("--allow-remote") && refused.contains("port-forward"),
            "{refused}"
        );
        let refused = open(&["--publish", "tcp://0.0.0.0:0", "--allow-remote"]).unwrap_err();
        assert!(refused.contains("openssl"), "{refused}");
        let refused = open(&["--publish", "tcp://127.0.0.1:0", "--feed-key", "/nowhere"]).unwrap_err();
        assert!(refused.contains("/nowhere"), "{refused}");
    }
}
