//! Results beside their targets, for the message sizes that have one.

use anyhow::Result;

use super::super::aims;
use super::way::Way;

/// Ways that a user could choose instead of tokengap.
fn is_peer(way: Way) -> bool {
    matches!(way, Way::ZmqProxy(_) | Way::Crate | Way::Socat)
}

/// (way, rate relative to a direct connection, CPU microseconds per message), for messages of `size` KiB.
pub(super) fn throughput(size: u64, rows: &[(Way, f64, Option<f64>)]) -> Result<()> {
    let rate = |of| rows.iter().find(|row| row.0 == of).map(|row| row.1);
    let cpu = |of| rows.iter().find(|row| row.0 == of).and_then(|row| row.2);
    let (Some(ours), true) = (rate(Way::Decoding), [16, 64, 256].contains(&size)) else {
        return Ok(());
    };
    let floor = rate(Way::Floor("copy")).map(|rate| ("read, write", rate));
    let counted = rate(Way::Counting).map(|rate| ("frames counted", rate));
    let least = rate(Way::Least).map(|rate| ("read, write, decode", rate));
    let beside: Vec<_> = counted.into_iter().chain(floor).chain(least).collect();
    aims::came(&format!("relay.{size}.rate"), ours, &beside)?;
    let peers = || rows.iter().filter(|row| is_peer(row.0)).map(|row| row.1);
    if let Some(best) = peers().reduce(f64::max) {
        aims::came(&format!("relay.{size}.peers"), ours / best, &[])?;
    }
    let (Some(proxy), 64) = (cpu(Way::ZmqProxy("proxy")), size) else {
        return Ok(());
    };
    let ours = [
        (Way::Decoding, "cpu", (Way::Least, "read, write, decode")),
        (Way::Counting, "counting", (Way::Floor("copy"), "read, write")),
    ];
    for (way, key, (least, name)) in ours {
        let floor: Vec<_> = cpu(least).map(|us| (name, us / proxy)).into_iter().collect();
        cpu(way).map_or(Ok(()), |us| aims::came(&format!("relay.64.{key}"), us / proxy, &floor))?;
    }
    Ok(())
}

/// (way, added microseconds over a direct connection), for messages of `size` KiB.
pub(super) fn latency(size: u64, rows: &[(Way, f64)]) -> Result<()> {
    let of = |of| rows.iter().find(|row| row.0 == of).map(|row| row.1);
    let (Some(ours), true) = (of(Way::Decoding), [1, 4, 16, 64].contains(&size)) else {
        return Ok(());
    };
    let beside = [
        ("read, write", of(Way::Floor("copy"))),
        (
            "the best peer",
            rows.iter()
                .filter(|row| is_peer(row.0))
                .map(|row| row.1)
                .reduce(f64::min),
        ),
    ];
    let beside: Vec<_> = beside.into_iter().filter_map(|(what, us)| Some((what, us?))).collect();
    aims::came(&format!("relay.{size}.latency"), ours, &beside)
}
