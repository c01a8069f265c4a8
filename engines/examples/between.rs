//! Programs between two libzmq peers, for `cargo xtask bench relay`.
//!
//! `between count|decode LISTEN UPSTREAM` is tokengap's relay. It prints the number of counted or decoded messages when its last connection
//! closes. `between crate LISTEN UPSTREAM` forwards with the `zeromq` crate. Both print READY.

use std::error::Error;
use std::io::Read as _;
use std::thread;
use std::time::Duration;

use engines::sglang::wire::{Decoder, Limits};
use zeromq::{PullSocket, PushSocket, Socket as _, SocketRecv as _, SocketSend as _};
use zmq_tap::relay::{Observed, Options, Pair, Payload, Relay, lower_priority};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [mode, listen, upstream] = words.as_slice() else {
        return Err("usage: between count|decode|crate LISTEN UPSTREAM".into());
    };
    match mode.as_str() {
        "count" | "decode" => relay(listen, upstream, mode == "decode"),
        "crate" => forward(listen, upstream),
        _ => Err(format!("{mode} is neither count, decode nor crate").into()),
    }
}

fn relay(listen: &str, upstream: &str, decode: bool) -> Result<(), Box<dyn Error>> {
    let pair = Pair { listen: listen.parse()?, upstream: upstream.parse()? };
    let relay = Relay::start(vec![pair], Options { formats: engines::FORMATS, ..Options::default() })?;
    let observations = relay.observations();
    thread::spawn(move || {
        // Decode at low priority, so that traffic comes first.
        let _ = lower_priority();
        let (mut decoder, mut seen, mut open) = (Decoder::new(Limits::default()), 0_u64, 0_u32);
        loop {
            match observations.poll().map(|observation| observation.what) {
                Some(Observed::Frame { payload: Payload::Whole(bytes), .. }) => {
                    seen += u64::from(!decode || decoder.decode(&bytes).is_ok());
                }
                Some(Observed::Opened(_)) => open += 1,
                Some(Observed::Closed { .. }) => {
                    open -= 1;
                    // The thread stays, so that its CPU time can be read.
                    if open == 0 {
                        println!("{seen}");
                    }
                }
                Some(_) => {}
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
    });
    println!("READY");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// One direction of `zeromq::proxy`, which itself accepts only sockets that both send and receive.
fn forward(listen: &str, upstream: &str) -> Result<(), Box<dyn Error>> {
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
