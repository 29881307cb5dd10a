//! Runs a part's tree for one recipient, counting every byte and watching the clock.

use std::fmt::Write as _;
use std::time::Instant;

use liquid_core::Expression;
use liquid_core::model::{State, Value, ValueCow, ValueView, ValueViewCmp};

use super::escape;
use super::fault::RenderFault;
use super::filters;
use super::lexer::Comparison;
use super::limits::Limits;
use super::program::{Compare, Loop, Op, Source, Test};
use super::scan::Shown;
use super::scope::{Frame, Scope};

/// How often the clock is read: every so many operations.
const OPS_PER_CLOCK: u32 = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// One rendering of one message: all its parts share the budget.
pub(super) struct Engine<'a> {
    pub(super) scope: Scope<'a>,
    limits: &'a Limits,
    started: Instant,
    ops: u32,
    spent: usize,
    unsubscribe_shown: bool,
    address_shown: bool,
}

impl<'a> Engine<'a> {
    pub(super) fn new(scope: Scope<'a>, limits: &'a Limits) -> Self {
        Self {
            scope,
            limits,
            started: Instant::now(),
            ops: 0,
            spent: 0,
            unsubscribe_shown: false,
            address_shown: false,
        }
    }

    /// Forgets what the last part set and showed. The budget stays.
    pub(super) fn next_part(&mut self) {
        self.scope.locals.clear();
        self.unsubscribe_shown = false;
        self.address_shown = false;
    }

    /// Appends what the operations print.
    pub(super) fn render(&mut self, ops: &[Op], out: &mut String) -> Result<(), RenderFault> {
        self.run(ops, out).map(|_| ())
    }

    fn run(&mut self, ops: &[Op], out: &mut String) -> Result<Flow, RenderFault> {
        for op in ops {
            self.tick()?;
            let before = out.len();
            let flow = self.step(op, out)?;
            // Blocks have charged for what is inside them.
            if matches!(op, Op::Text(_) | Op::Output { .. } | Op::Click { .. } | Op::Link { .. }) {
                self.charge(out.len() - before)?;
            }
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn step(&mut self, op: &Op, out: &mut String) -> Result<Flow, RenderFault> {
        match op {
            Op::Text(text) => out.push_str(text),
            Op::Output { chain, escape, breaks, shows } => {
                if let Some(shown) = shows {
                    self.note(*shown);
                }
                let value = chain.evaluate(&self.scope).map_err(|_| RenderFault::Filter)?;
                print(value.as_view(), *escape, *breaks, out);
            }
            Op::Click { link, url } => escape::html(&self.scope.links.click(*link, url), out),
            Op::Link { link, target } => self.link(*link, target, out)?,
            Op::OpenPixel => escape::html(&self.scope.links.open_pixel(), out),
            Op::Unsubscribe { escape: true } => escape::html(self.scope.unsubscribe(), out),
            Op::Unsubscribe { escape: false } => out.push_str(self.scope.unsubscribe()),
            Op::UnlessShown { field, body } => {
                let shown = match field {
                    Shown::Unsubscribe => self.unsubscribe_shown,
                    Shown::PhysicalAddress => self.address_shown,
                };
                if !shown {
                    return self.run(body, out);
                }
            }
            Op::Choose { branches, otherwise } => {
                let chosen = branches.iter().find(|(test, _)| self.holds(test)).map_or(otherwise, |(_, body)| body);
                return self.run(chosen, out);
            }
            Op::Case { value, branches, otherwise } => {
                let chosen = branches.iter().find(|(wanted, _)| wanted.iter().any(|wanted| self.equal(wanted, value)));
                return self.run(chosen.map_or(otherwise, |(_, body)| body), out);
            }
            Op::For(each) => return self.each(each, out),
            Op::Assign { name, chain } => {
                let value = chain.evaluate(&self.scope).map_err(|_| RenderFault::Filter)?.into_owned();
                self.charge(filters::size(&value, 0))?;
                self.scope.set(name, value);
            }
            Op::Capture { name, body } => {
                let mut captured = String::new();
                let flow = self.run(body, &mut captured)?;
                self.scope.set(name, Value::scalar(captured));
                return Ok(flow);
            }
            Op::Break => return Ok(Flow::Break),
            Op::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// A link whose target is rendered. Web addresses are tracked; addresses that would run something lead nowhere.
    fn link(&mut self, link: u16, target: &[Op], out: &mut String) -> Result<(), RenderFault> {
        let mut written = String::new();
        self.run(target, &mut written)?;
        let url = super::entities::decode(&written);
        let url = url.trim();
        if escape::is_web_address(url) {
            if url == self.scope.unsubscribe() || url == self.scope.preferences() {
                escape::html(url, out);
            } else {
                escape::html(&self.scope.links.click(link, url), out);
            }
        } else if escape::is_script_address(url) {
            out.push('#');
        } else {
            escape::html(url, out);
        }
        Ok(())
    }

    fn each(&mut self, each: &Loop, out: &mut String) -> Result<Flow, RenderFault> {
        let mut items = self.items(each)?;
        if each.reversed {
            items.reverse();
        }
        if items.is_empty() {
            return self.run(&each.otherwise, out);
        }
        let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
        for (index, item) in (0..length).zip(items) {
            self.tick()?;
            self.scope.frames.push(Frame { variable: each.variable.clone(), item, index, length });
            let flow = self.run(&each.body, out);
            self.scope.frames.pop();
            if flow? == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }

    fn items(&self, each: &Loop) -> Result<Vec<Value>, RenderFault> {
        let whole = |wanted: &Option<Expression>| {
            let wanted = self.value(wanted.as_ref()?);
            wanted.as_scalar()?.to_integer().map(|number| usize::try_from(number).unwrap_or(0))
        };
        let (offset, limit) = (whole(&each.offset).unwrap_or(0), whole(&each.limit).unwrap_or(usize::MAX));
        Ok(match &each.source {
            Source::Range(from, to) => (*from..=*to).skip(offset).take(limit).map(Value::scalar).collect(),
            Source::Value(value) => {
                let value = self.value(value);
                if let Some(array) = value.as_array() {
                    array.values().skip(offset).take(limit).map(ValueView::to_value).collect()
                } else if let Some(object) = value.as_object() {
                    let pair = |(key, value): (liquid_core::model::KStringCow<'_>, &dyn ValueView)| {
                        Value::Array(vec![Value::scalar(key.into_owned()), value.to_value()])
                    };
                    object.iter().skip(offset).take(limit).map(pair).collect()
                } else if value.query_state(State::Blank) || !value.is_scalar() {
                    Vec::new()
                } else {
                    vec![value.into_owned()].into_iter().skip(offset).take(limit).collect()
                }
            }
        })
    }

    /// An expression's value. A path that cannot be followed has none.
    fn value<'s>(&'s self, expression: &'s Expression) -> ValueCow<'s> {
        expression.try_evaluate(&self.scope).unwrap_or(ValueCow::Borrowed(&super::scope::MISSING))
    }

    fn equal(&self, left: &Expression, right: &Expression) -> bool {
        let (left, right) = (self.value(left), self.value(right));
        ValueViewCmp::new(left.as_view()) == ValueViewCmp::new(right.as_view())
    }

    fn holds(&self, test: &Test) -> bool {
        let holds = test.any_of.iter().any(|all| all.iter().all(|compare| self.compares(compare)));
        holds != test.negated
    }

    fn compares(&self, compare: &Compare) -> bool {
        let left = self.value(&compare.left);
        let Some((comparison, right)) = &compare.right else { return left.query_state(State::Truthy) };
        let right = self.value(right);
        let (a, b) = (ValueViewCmp::new(left.as_view()), ValueViewCmp::new(right.as_view()));
        match comparison {
            Comparison::Equal => a == b,
            Comparison::NotEqual => a != b,
            Comparison::Less => a < b,
            Comparison::LessOrEqual => a <= b,
            Comparison::Greater => a > b,
            Comparison::GreaterOrEqual => a >= b,
            Comparison::Contains => contains(left.as_view(), right.as_view()),
        }
    }

    fn note(&mut self, shown: Shown) {
        match shown {
            Shown::Unsubscribe => self.unsubscribe_shown = true,
            Shown::PhysicalAddress => self.address_shown = true,
        }
    }

    fn charge(&mut self, bytes: usize) -> Result<(), RenderFault> {
        self.spent += bytes;
        if self.spent > self.limits.output_bytes { Err(RenderFault::OutputTooLarge) } else { Ok(()) }
    }

    fn tick(&mut self) -> Result<(), RenderFault> {
        self.ops = self.ops.wrapping_add(1);
        if self.ops.is_multiple_of(OPS_PER_CLOCK) && self.started.elapsed() > self.limits.deadline {
            return Err(RenderFault::DeadlineExceeded);
        }
        Ok(())
    }
}

fn print(value: &dyn ValueView, escape: bool, breaks: bool, out: &mut String) {
    let start = out.len();
    match value.as_scalar() {
        Some(_) => {
            let text = value.to_kstr();
            if escape { escape::html(&text, out) } else { out.push_str(&text) }
        }
        None => {
            let mut text = String::new();
            // Writing to a String does not fail.
            let _ = write!(text, "{}", value.render());
            if escape { escape::html(&text, out) } else { out.push_str(&text) }
        }
    }
    if breaks {
        let broken = out.get(start..).unwrap_or_default().replace("\r\n", "\n").replace('\n', "<br />\n");
        out.truncate(start);
        out.push_str(&broken);
    }
}

fn contains(whole: &dyn ValueView, part: &dyn ValueView) -> bool {
    if let Some(array) = whole.as_array() {
        return array.values().any(|item| ValueViewCmp::new(item) == ValueViewCmp::new(part));
    }
    if let Some(object) = whole.as_object() {
        return object.contains_key(&part.to_kstr());
    }
    let (whole, part) = (whole.to_kstr(), part.to_kstr());
    !part.is_empty() && whole.contains(part.as_str())
}
