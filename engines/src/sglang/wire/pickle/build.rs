//! Construction of containers, names and records of calls.

use super::super::Undecoded;
use super::super::arena::{Global, ListRun, NameSpan, Node, RecordedCall};
use super::vm::PickleMachine;
use super::{flat, op, scalar};

impl PickleMachine<'_, '_> {
    /// Adds an empty container to the arena and pushes it. `node` makes the value from the container's index.
    pub(super) fn push_empty(&mut self, node: impl FnOnce(u32) -> Node) -> Result<(), Undecoded> {
        let first_run = self.arena.add_list_run_and_get_index(ListRun::EMPTY, self.limits)?;
        self.push_value(node(first_run))
    }

    /// Runs `EMPTY_LIST` with the opcodes that usually follow: `MEMOIZE`, and one batch of items up to an `APPEND` or `APPENDS`. A batch of
    /// only plain items is left in the message, and a run (its position and length) describes it. Otherwise the list stays empty here, and
    /// the machine appends its items later.
    pub(super) fn run_empty_list_and_first_batch(&mut self) -> Result<(), Undecoded> {
        // The index of the list's run, which is added at the end, once its items are known.
        let list = Node::List(self.arena.list_runs.len() as u32);
        self.push_value(list)?;
        self.memoize_top_if_requested()?;
        let batch = match self.message.get(self.at) {
            Some(&op::MARK) => flat::measure_batch_and_memoize_strings(
                self.message,
                self.at + 1,
                &mut self.arena.memo,
                self.limits.memo,
            ),
            _ => flat::scan_single_int(self.message, self.at),
        };
        if let Some(batch) = &batch {
            // Continue after the APPEND or APPENDS that ends the batch.
            self.at = batch.end + 1;
        }
        let run = batch.map_or(ListRun::EMPTY, |batch| batch.to_list_run());
        self.arena.add_list_run_and_get_index(run, self.limits)?;
        Ok(())
    }

    /// Moves the stack's values from the index `first_index` on into the list below them.
    pub(super) fn move_stack_values_into_list(&mut self, first_index: usize) -> Result<(), Undecoded> {
        match self.container_below(first_index)? {
            Node::List(list) => self.arena.append_items(list, &self.stack[first_index..], self.limits)?,
            // A class that is itself a container. No field that is read has such a class.
            Node::Object(_) => {}
            // No pickler appends to a list after it has completed it.
            Node::Ints { .. } => return Err(self.malformed("items for a completed list")),
            _ => return Err(self.malformed("items for something that is not a list")),
        }
        self.stack.truncate(first_index);
        Ok(())
    }

    /// Moves the stack's values from the index `first_index` on into the dict below them. Keys and values alternate.
    pub(super) fn move_stack_values_into_dict(&mut self, first_index: usize) -> Result<(), Undecoded> {
        match self.container_below(first_index)? {
            Node::Dict(list) => self.arena.append_items(list, &self.stack[first_index..], self.limits)?,
            // A class that is itself a container. No field that is read has such a class.
            Node::Object(_) => {}
            _ => return Err(self.malformed("items for something that is not a dict")),
        }
        self.stack.truncate(first_index);
        Ok(())
    }

    /// Replaces the stack's values from the index `first_index` on by a tuple of them.
    pub(super) fn replace_stack_values_by_tuple(&mut self, first_index: usize) -> Result<(), Undecoded> {
        let list = self.arena.add_list_run_and_get_index(ListRun::EMPTY, self.limits)?;
        self.arena.append_items(list, &self.stack[first_index..], self.limits)?;
        self.stack.truncate(first_index);
        self.push_value(Node::Tuple(list))
    }

    /// Runs `STACK_GLOBAL`: replaces the names of a module and a class on the stack by the class.
    pub(super) fn run_stack_global(&mut self) -> Result<(), Undecoded> {
        let name = self.pop_value()?;
        let module = self.pop_value()?;
        let (Node::Str(name), Node::Str(module)) = (name, module) else {
            return Err(self.malformed("a class whose name is not a string"));
        };
        let node =
            self.add_global(Global { module: self.name_at(module as usize)?, name: self.name_at(name as usize)? })?;
        self.push_value(node)
    }

    /// Position of the text of the string at `at`.
    fn name_at(&self, at: usize) -> Result<NameSpan, Undecoded> {
        let text = scalar::payload_range(self.message, at).ok_or(Undecoded::Truncated { at })?;
        Ok(NameSpan { start: text.start as u32, len: (text.end - text.start) as u32 })
    }

    /// Reads the two lines of text that follow `GLOBAL` and `INST`.
    pub(super) fn read_text_global(&mut self) -> Result<Node, Undecoded> {
        let global = Global { module: self.read_line_span()?, name: self.read_line_span()? };
        self.add_global(global)
    }

    /// Reads the rest of a line, as in pickles of protocol 0. Continues after the end of the line.
    fn read_line_span(&mut self) -> Result<NameSpan, Undecoded> {
        let at = self.at;
        let len = self.message[at..].iter().position(|byte| *byte == b'\n').ok_or(Undecoded::Truncated { at })?;
        self.at += len + 1;
        Ok(NameSpan { start: at as u32, len: len as u32 })
    }

    /// Enters a class into the arena, and returns a node that refers to it. Fails at the limit.
    fn add_global(&mut self, global: Global) -> Result<Node, Undecoded> {
        if self.arena.globals.len() >= self.limits.items {
            return Err(Undecoded::Limit { limit: "items", value: self.limits.items });
        }
        self.arena.globals.push(global);
        Ok(Node::Global((self.arena.globals.len() - 1) as u32))
    }

    /// Runs `callable(*args)`: builds the array if it constructs one, and otherwise records the call.
    pub(super) fn push_constructed_value(&mut self, callable: Node, args: Node) -> Result<(), Undecoded> {
        match self.construct_array(callable, args) {
            Some(array) => self.push_value(array),
            None => self.record_call_and_push_object(callable, args),
        }
    }

    /// Skips the empty state of an object that was just built: `}`, its memo slot and `BUILD`. Returns whether there was one.
    pub(super) fn try_skip_empty_state(&mut self) -> bool {
        const EMPTY_STATE: [u8; 3] = [op::EMPTY_DICT, op::MEMOIZE, op::BUILD];
        let has_empty_state = self.message[self.at..].starts_with(&EMPTY_STATE);
        // At the limit of the memo, the machine executes the opcodes and reports the limit.
        if !has_empty_state || self.arena.memo.len() >= self.limits.memo {
            return false;
        }
        self.arena.memo.push(Node::Unbuilt);
        self.at += EMPTY_STATE.len();
        true
    }

    /// Records a call without running it, and pushes the object that stands for its result.
    pub(super) fn record_call_and_push_object(&mut self, callable: Node, args: Node) -> Result<(), Undecoded> {
        if self.arena.objects.len() >= self.limits.items {
            return Err(Undecoded::Limit { limit: "items", value: self.limits.items });
        }
        self.arena.objects.push(RecordedCall { callable, args, state: Node::Nil });
        self.push_value(Node::Object((self.arena.objects.len() - 1) as u32))
    }
}
