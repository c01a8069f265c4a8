//! The releases' own routers: one scheduler, `MultiDetokenizerRouter`, two detokenizers and four tokenizer workers, or
//! `MultiTokenizerRouter` in front of the four; and the two servers of a disaggregated pair. Checks the report of every hop and worker
//! against the processes' truth.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::attach::kernel;
use super::attach::watch::Watch;
use super::check::{Checks, SLOW, exact, verdicts};
use super::plan::{Engine, Plan};
use super::process::Process;
use super::session::{STARTUP, Session, Setting, mono_ns, role};
use super::setup::Home;
use super::table::Table;
use super::tap::{Relay, Splice, Tap, Transport};
use super::truth::{ReceiverTotals, RelayTotals, SenderTotals, Truth};
use super::{Options, summary};

/// Releases that split a batch differently: a message for each request, or one for each worker.
const RELEASES: [&str; 2] = ["0.5.13", "0.5.23"];
/// Release for the tokenizers' router, which accepts token ids from 0.5.16 on.
const SKIPS: &str = "0.5.23";
const WORKERS: usize = 4;
const DETOKENIZERS: usize = 2;
/// Time limit for every process to exit.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which messages sent before the observation have arrived everywhere.
const SETTLED: Duration = Duration::from_millis(500);

/// Router behind the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Detokenizers,
    Tokenizers,
}

impl Behind {
    /// Hops of the path, in order.
    fn hops(self) -> &'static [&'static str] {
        match self {
            Self::Detokenizers => &[
                "scheduler->detokenizer-router",
                "detokenizer-router->detokenizer",
                "detokenizer->worker",
            ],
            Self::Tokenizers => &["scheduler->router", "router->worker"],
        }
    }
}

/// All rows of the table for routers and disaggregated pairs.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, relay: &Relay, engines: &[Engine]) {
    if options.quick {
        return;
    }
    let named = |engine: &&Engine, releases: &[&str]| releases.contains(&engine.release.as_str());
    for engine in engines.iter().filter(|e| named(e, &RELEASES)) {
        table.row(options, engine, "detokenizer router", |checks, dir| {
            tapped(home, engine, Behind::Detokenizers, relay, dir, checks)
        });
        // The codec does not affect routing.
        if engine.msgpack {
            continue;
        }
        let name = "attach, detokenizer router";
        match (kernel::refusal(), relay) {
            (Some(why), _) => table.skip(options, engine, name, &why),
            (None, Relay::Tokengap(program)) => table.row(options, engine, name, |checks, dir| {
                watched(home, engine, program, dir, checks)
            }),
            (None, _) => {}
        }
        if let (None, Relay::Tokengap(program), SKIPS) = (kernel::refusal(), relay, engine.release.as_str()) {
            for victim in VICTIMS {
                table.row(
                    options,
                    engine,
                    &format!("attach, {} stopped", victim.name),
                    |checks, dir| stopped(home, engine, program, victim, dir, checks),
                );
            }
        }
    }
    for engine in engines.iter().filter(|e| named(e, &[SKIPS])) {
        table.row(options, engine, "tokenizer router", |checks, dir| {
            tapped(home, engine, Behind::Tokenizers, relay, dir, checks)
        });
        if engine.msgpack {
            continue;
        }
        let plan = Plan {
            tokens: 20,
            stagger: 1,
            ..Plan::PLAIN
        };
        // Every second group of four is a sampling group, whose first request only warms the cache and sends no token.
        let warm_ups = plan.requests / 4 / 2;
        let whole = plan.requests * plan.tokens;
        let sides: [(&str, &[&str], &[&str], u32); 3] = [
            ("prefill server", &["--disaggregation", "prefill"], &[], plan.requests),
            ("decode server", &["--disaggregation", "decode"], &[], whole),
            (
                "batches and samples",
                &["--group", "4"],
                &["--group", "4"],
                whole - warm_ups * plan.tokens,
            ),
        ];
        for (name, sender, receiver, tokens) in sides {
            table.row(options, engine, name, |checks, dir| {
                let setting = Setting {
                    plan,
                    receiver,
                    sender,
                    ..Setting::new(engine)
                };
                let mut session = Session::start(home, &setting, relay, dir)?;
                session.go()?;
                let outcome = session.finish()?;
                exact(&outcome, checks);
                let sent = outcome.senders[0].totals.output.tokens;
                checks.equal("tokens sent", &u64::from(tokens), &sent);
                Ok(summary(&outcome))
            });
        }
    }
}

fn plan(senders: u32) -> Plan {
    Plan {
        senders,
        requests: 32,
        tokens: 40,
        stagger: 1,
        ..Plan::PLAIN
    }
}

/// The connected processes, before anything has been sent.
struct Cast {
    router: Process,
    detokenizers: Vec<Process>,
    workers: Vec<Process>,
    senders: Vec<Process>,
    tap: Option<Tap>,
}

/// Truth of each process.
struct Said {
    senders: Vec<Truth<SenderTotals>>,
    router: Truth<RelayTotals>,
    detokenizers: Vec<Truth<RelayTotals>>,
    workers: Vec<Truth<ReceiverTotals>>,
    report: Option<Value>,
}

impl Cast {
    fn start(home: &Home, engine: &Engine, plan: Plan, behind: Behind, relay: &Relay, dir: &Path) -> Result<Self> {
        let setting = Setting {
            plan,
            ..Setting::new(engine)
        };
        let place = |name: &str, hop: &'static str| -> Result<Splice> {
            let splice = Splice::new(relay, Transport::Ipc, dir, name)?;
            Ok(Splice {
                hop: Some(hop),
                ..splice
            })
        };
        let hops = behind.hops();
        let into_router = place("router", hops[0])?;
        let detokenizer_count = if behind == Behind::Detokenizers {
            DETOKENIZERS
        } else {
            0
        };
        let into_detokenizers: Vec<Splice> = (0..detokenizer_count)
            .map(|n| place(&format!("detokenizer{n}"), hops[1]))
            .collect::<Result<_>>()?;
        let into_workers: Vec<Splice> = (0..WORKERS)
            .map(|n| {
                // The router hashes a worker's endpoint. Try names until both detokenizers have the same load.
                let named = |i: u32| place(&format!("worker{n}-{i}"), hops[hops.len() - 1]);
                let fits = |splice: &Splice| {
                    crc32fast::hash(splice.front.as_bytes()) as usize % DETOKENIZERS == n % DETOKENIZERS
                };
                let mut tried = (0..1_000).map(named);
                tried
                    .find(|splice| splice.as_ref().map_or(true, fits))
                    .context("no endpoint fits")?
            })
            .collect::<Result<_>>()?;
        let fronts = |flag: &str, splices: &[Splice]| -> Vec<String> {
            splices
                .iter()
                .flat_map(|s| [flag.to_owned(), s.front.clone()])
                .collect()
        };
        let text = (behind == Behind::Detokenizers).then_some("--detokenizer");
        let mut workers = Vec::new();
        for (n, splice) in into_workers.iter().enumerate() {
            let worker = role(home, &setting, "receive")
                .args(["--bind", &splice.back, "--worker", &n.to_string(), &WORKERS.to_string()])
                .args(text)
                .args(plan.options());
            workers.push(worker.start(&format!("worker{n}"), dir)?);
        }
        let mut detokenizers = Vec::new();
        for (n, splice) in into_detokenizers.iter().enumerate() {
            let detokenize = role(home, &setting, "detokenize").args(["--bind", &splice.back]);
            let to = fronts("--connect", &into_workers);
            detokenizers.push(detokenize.args(to).start(&format!("detokenizer{n}"), dir)?);
        }
        let mut router = role(home, &setting, "route")
            .args(["--bind", &into_router.back])
            .args(fronts("--connect", &into_detokenizers))
            .args((behind == Behind::Tokenizers).then_some("--tokenizers"))
            .start("router", dir)?;
        for process in workers.iter_mut().chain(&mut detokenizers).chain([&mut router]) {
            process.line("READY", STARTUP)?;
        }
        let splices = [
            std::slice::from_ref(&into_router),
            &into_detokenizers[..],
            &into_workers[..],
        ]
        .concat();
        let tap = Tap::start(relay, "tap", &splices, dir)?;
        let mut senders = Vec::new();
        for number in 0..plan.senders {
            let sender = role(home, &setting, "send")
                .args(["--connect", &into_router.front, "--control", &into_workers[0].front])
                .args(["--sender", &number.to_string(), "--gap", "5e-3"])
                .args(fronts("--worker", &into_workers))
                .args(text)
                .args(plan.options());
            senders.push(sender.start(&format!("sender{number}"), dir)?);
        }
        for sender in &mut senders {
            sender.line("READY", STARTUP)?;
        }
        for process in workers.iter_mut().chain(&mut detokenizers).chain([&mut router]) {
            process.say("go")?;
        }
        Ok(Self {
            router,
            detokenizers,
            workers,
            senders,
            tap,
        })
    }

    /// Lets one scheduler send everything.
    fn send(&mut self, number: usize) -> Result<()> {
        self.begin(number)?;
        self.done(number)?;
        std::thread::sleep(SETTLED);
        Ok(())
    }

    fn begin(&mut self, number: usize) -> Result<()> {
        self.senders.get_mut(number).context("no such sender")?.say("go")
    }

    fn done(&mut self, number: usize) -> Result<()> {
        let sender = self.senders.get_mut(number).context("no such sender")?;
        sender.line("DONE", PATIENCE).map(|_| ())
    }

    /// Stops every process in the order of the path.
    fn finish(self, dir: &Path) -> Result<Said> {
        fn end(mut process: Process) -> Result<()> {
            process.stop();
            process.end_well(PATIENCE).map(|_| ())
        }
        let count = self.senders.len();
        self.senders.into_iter().try_for_each(end)?;
        end(self.router)?;
        self.detokenizers.into_iter().try_for_each(end)?;
        self.workers.into_iter().try_for_each(end)?;
        let path = |name: String| dir.join(format!("{name}.truth"));
        let detokenizers = (0..DETOKENIZERS)
            .map(|n| path(format!("detokenizer{n}")))
            .filter(|p| p.exists());
        Ok(Said {
            senders: (0..count)
                .map(|n| Truth::read(&path(format!("sender{n}"))))
                .collect::<Result<_>>()?,
            router: Truth::read(&path("router".into()))?,
            detokenizers: detokenizers.map(|p| Truth::read(&p)).collect::<Result<_>>()?,
            workers: (0..WORKERS)
                .map(|n| Truth::read(&path(format!("worker{n}"))))
                .collect::<Result<_>>()?,
            report: self.tap.map(|tap| tap.report(Signal::TERM)).transpose()?.flatten(),
        })
    }
}

fn tapped(
    home: &Home,
    engine: &Engine,
    behind: Behind,
    relay: &Relay,
    dir: &Path,
    checks: &mut Checks,
) -> Result<String> {
    let mut cast = Cast::start(home, engine, plan(1), behind, relay, dir)?;
    cast.send(0)?;
    let said = cast.finish(dir)?;
    everything_adds_up(&said, behind, 0, checks)
}

/// Runs another scheduler first, because the router connects to a worker only when it first has a message for it.
fn watched(home: &Home, engine: &Engine, program: &Path, dir: &Path, checks: &mut Checks) -> Result<String> {
    let mut cast = Cast::start(home, engine, plan(2), Behind::Detokenizers, &Relay::Absent, dir)?;
    cast.send(0)?;
    let watch = Watch::start_with(program, cast.workers[0].pid(), dir, &[])?;
    let from = mono_ns();
    cast.send(1)?;
    let report = watch.report()?;
    let mut said = cast.finish(dir)?;
    said.report = Some(report);
    everything_adds_up(&said, Behind::Detokenizers, from, checks)
}

/// A process to stop while others continue, and the hop where first tokens then wait.
#[derive(Clone, Copy)]
struct Victim {
    name: &'static str,
    hop: usize,
    of: fn(&Cast) -> &Process,
}

const VICTIMS: [Victim; 3] = [
    Victim {
        name: "router",
        hop: 0,
        of: |cast| &cast.router,
    },
    Victim {
        name: "one detokenizer of two",
        hop: 1,
        of: |cast| &cast.detokenizers[1],
    },
    Victim {
        name: "one worker of four",
        hop: 2,
        of: |cast| &cast.workers[2],
    },
];
/// Duration of the stop: twice the limit for a first token.
const STOPPED: Duration = Duration::from_secs(3);

/// Checks that the report names the hop into the stopped process and no other.
fn stopped(
    home: &Home,
    engine: &Engine,
    program: &Path,
    victim: Victim,
    dir: &Path,
    checks: &mut Checks,
) -> Result<String> {
    let behind = Behind::Detokenizers;
    let mut cast = Cast::start(home, engine, plan(3), behind, &Relay::Absent, dir)?;
    cast.send(0)?;
    let watch = Watch::start_with(program, cast.workers[0].pid(), dir, &[])?;
    // Send before the stop, so that the receivers are known.
    cast.send(1)?;
    (victim.of)(&cast).signal(Signal::STOP)?;
    let sent = cast.begin(2);
    std::thread::sleep(STOPPED);
    let report = watch.report();
    (victim.of)(&cast).signal(Signal::CONT)?;
    sent?;
    cast.done(2)?;
    std::thread::sleep(SETTLED);
    cast.finish(dir)?;
    let report = report?;
    let findings = || report["findings"].as_array().into_iter().flatten();
    let gap = findings()
        .find(|f| f["kind"] == "first-token-gap")
        .unwrap_or(&Value::Null);
    let hop = behind.hops()[victim.hop];
    checks.equal("the hop that first tokens wait on", &json!(hop), &gap["hop"]);
    checks.equal(
        "its thread is stopped",
        &json!("stopped"),
        &gap["evidence"]["bottleneck_thread"],
    );
    let verdict = findings().any(|f| f["kind"] == "consumer-stopped");
    checks.equal("the verdict on the consumer is that it is stopped", &true, &verdict);
    let one_of_several = victim.hop > 0;
    checks.equal(
        "one of its receivers stands out",
        &one_of_several,
        &gap["evidence"]["bottleneck_worker"].is_string(),
    );
    // Frames queued during the stop are delivered together and merged: a correct finding, and nobody else's fault.
    let warns = |f: &&Value| f["severity"] != "info" && f["kind"] != "coalescing";
    for finding in findings().filter(warns) {
        let accused = format!("nobody else is accused: {}", finding["summary"]);
        checks.equal(&accused, &json!(hop), &finding["hop"]);
        checks.equal("and there is advice", &true, &finding["advice"].is_string());
    }
    Ok(gap["summary"].as_str().unwrap_or_default().to_owned())
}

/// Frames, chunks and tokens.
type Load = [u64; 3];

/// Load of each receiver of each hop since `from`, in ascending order.
fn loads(said: &Said, behind: Behind, from: u64) -> BTreeMap<&'static str, Vec<Load>> {
    let sent = said.senders.iter().flat_map(|s| &s.sent).chain(&said.router.sent);
    let sent = sent.chain(said.detokenizers.iter().flat_map(|d| &d.sent));
    let content: HashMap<&str, [u64; 2]> = sent
        .map(|message| {
            let tokens = message.chunks.iter().filter_map(|chunk| chunk.1).sum();
            (message.hash.as_str(), [message.chunks.len() as u64, tokens])
        })
        .collect();
    let load = |taken: &[super::truth::Taken]| -> Load {
        let since = taken.iter().filter(|message| message.at_ns >= from);
        since.fold([0; 3], |[frames, chunks, tokens], message| {
            let [more, new] = content.get(message.hash.as_str()).copied().unwrap_or_default();
            [frames + 1, chunks + more, tokens + new]
        })
    };
    let mut lines = vec![vec![load(&said.router.taken)]];
    if behind == Behind::Detokenizers {
        lines.push(said.detokenizers.iter().map(|d| load(&d.taken)).collect());
    }
    lines.push(said.workers.iter().map(|w| load(&w.taken)).collect());
    let sorted = lines.into_iter().map(|mut line| {
        line.sort_unstable();
        line
    });
    behind.hops().iter().copied().zip(sorted).collect()
}

fn everything_adds_up(said: &Said, behind: Behind, from: u64, checks: &mut Checks) -> Result<String> {
    let finished: u64 = said.workers.iter().map(|w| w.totals.given.finished).sum();
    let lost: u64 = said.workers.iter().map(|w| w.totals.given.lost).sum();
    let asked: u64 = said.senders.iter().map(|s| s.totals.output.requests).sum();
    checks.equal("clients that were told of their end", &asked, &finished);
    let loads = loads(said, behind, from);
    let last = said.senders.last().context("a sender")?.totals.output;
    let Some(report) = &said.report else {
        return Ok(format!("{finished} clients, {lost} tokens lost"));
    };
    for (pointer, expected) in [
        ("/requests/seen", last.requests),
        ("/requests/finished", last.finishes),
        ("/chunks/sent", last.chunks),
        ("/tokens/sent", last.tokens),
        ("/self/frames_undecoded", 0),
        ("/self/events_missed", 0),
    ] {
        checks.report_says(report, pointer, expected);
    }
    let hops = || report["hops"].as_array().into_iter().flatten();
    for (name, expected) in &loads {
        let line = hops().find(|hop| hop["name"] == *name).unwrap_or(&Value::Null);
        let of = |line: &Value| json!([line["frames_sent"], line["chunks"], line["tokens"]]);
        let mut each: Vec<Value> = match line["workers"].as_array() {
            Some(workers) => workers.iter().map(of).collect(),
            None => vec![of(line)],
        };
        each.sort_by_key(|load| {
            load.as_array()
                .map(|l| l.iter().filter_map(Value::as_u64).collect::<Vec<_>>())
        });
        let expected: Vec<Value> = expected.iter().map(|load| json!(load)).collect();
        checks.equal(
            &format!("frames, chunks and tokens of each receiver on {name}"),
            &expected,
            &each,
        );
        checks.equal(
            &format!("requests that changed their receiver on {name}"),
            &json!(0),
            &line["rids_moved"],
        );
        checks.equal(
            &format!("chunks out of order on {name}"),
            &json!(0),
            &line["out_of_order"],
        );
    }
    verdicts(report, lost, &SLOW, checks);
    Ok(passages(report, behind, last.requests, last.chunks, checks))
}

/// Checks the processing stages between hops: one sample per chunk, or without a probe one per request.
fn passages(report: &Value, behind: Behind, requests: u64, chunks: u64, checks: &mut Checks) -> String {
    let (kind, counted) = match report["source"]["kind"].as_str() {
        Some("attach") => ("inside", chunks),
        _ => ("wait-and-inside", requests),
    };
    let roles: &[&str] = match behind {
        Behind::Detokenizers => &["detokenizer-router", "detokenizer"],
        Behind::Tokenizers => &["router"],
    };
    let mut told = Vec::new();
    for role in roles {
        let legs = || report["path"].as_array().into_iter().flatten();
        let leg = legs().find(|leg| leg["name"] == *role).unwrap_or(&Value::Null);
        checks.equal(&format!("what is seen of the {role}"), &json!(kind), &leg["kind"]);
        checks.equal(&format!("times of the {role}"), &json!(counted), &leg["ns"]["count"]);
        let ms = |ns: &Value| ns.as_f64().unwrap_or_default() / 1e6;
        told.push(format!(
            "{role} {:.2} ms (p99 {:.2})",
            ms(&leg["mean_ns"]),
            ms(&leg["ns"]["p99"])
        ));
        if kind == "inside" {
            checks.equal(&format!("the {role}'s own work is seen"), &true, &leg["busy"].is_f64());
        }
    }
    format!("{chunks} chunks of {requests} requests; {kind}: {}", told.join(", "))
}
