//! Groups of processes that are connected to each other.

/// Connected components of `node_count` nodes, each in ascending order, ordered by their first member.
pub fn connected_groups(node_count: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Vec<Vec<usize>> {
    let mut leaders = leaders_of_connected_nodes(node_count, edges);
    // A group stands at the index of its leader.
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); node_count];
    for node in 0..node_count {
        let leader = find_leader(&mut leaders, node);
        groups[leader].push(node);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

/// Joins connected nodes to groups, as disjoint sets: each node refers to another one of its group, and the group's first node, its leader,
/// to itself.
fn leaders_of_connected_nodes(node_count: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Vec<usize> {
    // At first each node is a group of its own.
    let mut leaders: Vec<usize> = (0..node_count).collect();
    for (node, other) in edges {
        let leader = find_leader(&mut leaders, node);
        let other_leader = find_leader(&mut leaders, other);
        // The first of both leaders stands for the joined group.
        leaders[leader.max(other_leader)] = leader.min(other_leader);
    }
    leaders
}

/// The first node of this node's group, which stands for the group. Shortens the path of references to it in `leaders`.
fn find_leader(leaders: &mut [usize], mut node: usize) -> usize {
    while leaders[node] != node {
        // Halving the path keeps later searches short.
        leaders[node] = leaders[leaders[node]];
        node = leaders[node];
    }
    node
}

#[cfg(test)]
mod tests {
    use super::connected_groups;

    #[test]
    fn processes_are_grouped_by_connections() {
        assert_eq!(connected_groups(6, [(4, 1), (1, 0), (3, 5)]), [vec![0, 1, 4], vec![2], vec![3, 5]]);
        assert_eq!(connected_groups(0, []), [[0; 0]; 0]);
    }
}
