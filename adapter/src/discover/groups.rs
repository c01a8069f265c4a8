//! Groups of processes that are connected to each other.

/// Connected components of `count` nodes, each in ascending order, ordered by their first member.
pub fn connected(count: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Vec<Vec<usize>> {
    let mut leader: Vec<usize> = (0..count).collect();
    for (a, b) in edges {
        let (a, b) = (find(&mut leader, a), find(&mut leader, b));
        leader[a.max(b)] = a.min(b);
    }
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); count];
    for node in 0..count {
        let first = find(&mut leader, node);
        groups[first].push(node);
    }
    groups.retain(|g| !g.is_empty());
    groups
}

fn find(leader: &mut [usize], mut node: usize) -> usize {
    while leader[node] != node {
        leader[node] = leader[leader[node]];
        node = leader[node];
    }
    node
}

#[cfg(test)]
mod tests {
    use super::connected;

    #[test]
    fn processes_are_grouped_by_connections() {
        assert_eq!(connected(6, [(4, 1), (1, 0), (3, 5)]), [vec![0, 1, 4], vec![2], vec![3, 5]]);
        assert_eq!(connected(0, []), [[0; 0]; 0]);
    }
}
