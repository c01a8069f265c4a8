//! Rust programs of a turn: tokengap's relay, and the `zeromq` crate between the same peers.

use std::io::Read as _;
use std::time::Duration;

use anyhow::{Result, bail};
use zeromq::{PullSocket, PushSocket, Socket as _, SocketRecv as _, SocketSend as _};
use zmq_tap::relay::{Observation, Options, Pair, Payload, Relay, step_aside};
use zmq_tap::wire::{Decoder, Limits};

pub(super) fn serve(listen: &str, upstream: &str, mode: &str, message: &str) -> Result<()> {
    match mode {
        "count" => relay(listen, upstream, false),
        "decode" => relay(listen, upstream, true),
        "crate" => other(listen, upstream),
        "least" => super::least::serve(listen, upstream, message),
        _ => bail!("{mode} is neither count, decode, crate nor least"),
    }
}

/// Prints the number of decoded (or counted) messages when its last connection closes.
fn relay(listen: &str, upstream: &str, decode: bool) -> Result<()> {
    let pair = Pair {
        listen: listen.parse()?,
        upstream: upstream.parse()?,
    };
    let relay = Relay::start(vec![pair], Options::default())?;
    let observations = relay.observations();
    std::thread::Builder::new().name("reader".into()).spawn(move || {
        // Decode at low priority, so that traffic comes first.
        let _ = step_aside();
        let (mut decoder, mut seen, mut open) = (Decoder::new(Limits::default()), 0_u64, 0_u32);
        loop {
            match observations.poll() {
                Some(Observation::Frame {
                    payload: Payload::Whole(bytes),
                    ..
                }) => {
                    seen += u64::from(!decode || decoder.decode(&bytes).is_ok());
                }
                Some(Observation::Opened { .. }) => open += 1,
                Some(Observation::Closed { .. }) => {
                    open -= 1;
                    // Keep the thread alive so that its CPU time can be read.
                    if open == 0 {
                        println!("{seen}");
                    }
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    })?;
    println!("READY");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// One direction of `zeromq::proxy`, which itself accepts only sockets that both send and receive.
fn other(listen: &str, upstream: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut front, mut back) = (PullSocket::new(), PushSocket::new());
        front.bind(listen).await?;
        back.connect(upstream).await?;
        println!("READY");
        loop {
            back.send(front.recv().await?).await?;
        }
    })
}
