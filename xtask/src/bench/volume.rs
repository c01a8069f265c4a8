//! `cargo xtask bench volume`: data volume of one pod at a stated load, in bytes per scrape, OTLP push, feed and recording.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tokengap to measure; by default a release build of this tree.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// How long each demo plays.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// Workloads, run one after the other.
    #[arg(long, value_name = "NAME", default_values_t = ["prefill".to_owned(), "healthy".to_owned(), "race".to_owned()])]
    scenario: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let binary = match &args.binary {
        Some(binary) => std::fs::canonicalize(binary)?,
        None => crate::screens::build()?,
    };
    println!(
        "| demo | chunks/s | series | bytes a scrape | OTLP bytes a minute | feed bytes/s | recording, bytes a chunk | recording, MB an hour |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for scenario in &args.scenario {
        println!("{}", measure(&binary, scenario, args.seconds)?);
    }
    Ok(())
}

/// A child process, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has already exited and been reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(binary: &PathBuf, scenario: &str, seconds: u32) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let recording = folder.path().join("run.tgap");
    let (otlp, pushed) = receiver()?;
    let (metrics, feed) = (free_port()?, free_port()?);
    let mut demo = Command::new(binary);
    demo.args(["demo", "--headless", "--json", "--scenario", scenario])
        .args(["--duration", &format!("{seconds}s"), "--metrics", &metrics.to_string()])
        .args(["--otlp", &format!("http://127.0.0.1:{otlp}")])
        .args(["--publish", &format!("tcp://127.0.0.1:{feed}"), "--record"])
        .arg(&recording)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut demo = Running(demo.spawn().context("starting the demo")?);
    let (watched, carried) = counting(feed)?;
    let mut watch = Command::new(binary);
    watch.args(["watch", "--headless", "--json", &format!("tcp://127.0.0.1:{watched}")]);
    let _watch = Running(watch.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    // Scrape while the run is in steady state. The feed's first bytes are its initial state and do not count towards the rate.
    thread::sleep(Duration::from_secs(5));
    let begun = carried.load(Ordering::Relaxed);
    thread::sleep(Duration::from_secs(u64::from(seconds.saturating_sub(10))));
    let fed = (carried.load(Ordering::Relaxed) - begun) as f64 / f64::from(seconds.saturating_sub(10).max(1));
    let scraped = scrape(metrics)?;
    let mut said = String::new();
    let out = demo.0.stdout.take().context("the demo says something")?;
    BufReader::new(out).read_to_string(&mut said)?;
    ensure!(demo.0.wait()?.success(), "the demo of {scenario} failed");
    let report: Value = serde_json::from_str(&said)?;
    let chunks = report["chunks"]["sent"].as_u64().context("chunks were sent")? as f64;
    let a_second = chunks / f64::from(seconds);
    let bytes_a_chunk = std::fs::metadata(&recording)?.len() as f64 / chunks;
    Ok(format!(
        "| `{scenario}` | {a_second:.0} | {} | {} | {:.0} | {fed:.0} | {bytes_a_chunk:.2} | {:.1} |",
        scraped.lines().filter(|line| !line.starts_with('#')).count(),
        scraped.len(),
        pushed.load(Ordering::Relaxed) as f64 * 60.0 / f64::from(seconds),
        bytes_a_chunk * a_second * 3600.0 / 1e6,
    ))
}

pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Body of one scrape, requested as Prometheus does.
pub(super) fn scrape(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(
        b"GET /metrics HTTP/1.1\r\nHost: pod\r\nAccept: application/openmetrics-text;version=1.0.0\r\nConnection: close\r\n\r\n",
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("the endpoint gave no body")?;
    Ok(body.to_owned())
}

/// Starts a receiver that accepts any POST and counts its bytes, including headers.
fn receiver() -> Result<(u16, Arc<AtomicU64>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (port, taken) = (listener.local_addr()?.port(), Arc::new(AtomicU64::new(0)));
    let counter = taken.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let counter = counter.clone();
            // A broken connection ends its own thread only.
            thread::spawn(move || drop(post(&stream, &counter)));
        }
    });
    Ok((port, taken))
}

fn post(stream: &TcpStream, taken: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut answers = stream;
    loop {
        let (mut length, mut head) = (0, 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            head += line.len() as u64;
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        taken.fetch_add(head + length, Ordering::Relaxed);
        answers.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")?;
    }
}

/// Starts a proxy to port `to`; returns its port and a counter of the bytes received from `to`.
fn counting(to: u16) -> Result<(u16, Arc<AtomicU64>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (port, carried) = (listener.local_addr()?.port(), Arc::new(AtomicU64::new(0)));
    let counter = carried.clone();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else {
                continue;
            };
            let counter = counter.clone();
            thread::spawn(move || drop(carry(&near, &far, &counter)));
        }
    });
    Ok((port, carried))
}

fn carry(near: &TcpStream, far: &TcpStream, carried: &AtomicU64) -> std::io::Result<()> {
    let (mut up_from, mut up_to) = (near.try_clone()?, far.try_clone()?);
    thread::spawn(move || {
        // Either end may close first.
        let _ = std::io::copy(&mut up_from, &mut up_to);
        let _ = up_to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to) = (far, near);
    let mut block = vec![0; 64 << 10];
    loop {
        let got = from.read(&mut block)?;
        if got == 0 {
            return near.shutdown(Shutdown::Both);
        }
        carried.fetch_add(got as u64, Ordering::Relaxed);
        to.write_all(&block[..got])?;
    }
}
