//! Runs a part's tree for one recipient. Every operation, value and byte is charged to one budget, where the work is done.

use std::borrow::Cow;

use liquid::model::{KString, State, Value, ValueView, ValueViewCmp};
use runtime::Budget;

use super::escape;
use super::fault::RenderFault;
use super::filters::weigh;
use super::footer;
use super::html;
use super::lexer::Comparison;
use super::limits::text_steps;
use super::merge::{Links, MergeData};
use super::options::MessageOptions;
use super::program::{BranchTest, Escape, Instruction, Loop};
use super::scan::{AddressKind, Shown};
use super::scope::{Frame, RenderScope};
use super::sheet::RootStyles;
use super::syntax::{ConditionTest, Operand, Over};

/// Steps for sealing the token of a link: about the time of so many comparisons.
pub(super) const LINK_STEPS: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// One rendering of one message: all its parts share the budget.
pub(super) struct Engine<'a> {
    pub(super) scope: RenderScope<'a>,
    /// The fields that the part showed.
    shown: Vec<Shown>,
    /// A printed value may hide what was shown.
    is_doubtful: bool,
    /// The styles of the template, and of the values that were printed as HTML.
    styles: Option<Cow<'a, RootStyles>>,
}

impl<'a> Engine<'a> {
    /// `styles`: those of the template that values printed as HTML are checked with.
    pub(super) fn new(
        options: &'a MessageOptions,
        styles: Option<&'a RootStyles>,
        data: &'a MergeData,
        links: &'a dyn Links,
        budget: Budget,
    ) -> Self {
        Self {
            scope: RenderScope::new(options, data, links, budget),
            shown: Vec::new(),
            is_doubtful: false,
            styles: styles.map(Cow::Borrowed),
        }
    }

    /// Forgets what the last part set and showed. The budget stays.
    pub(super) fn next_part(&mut self) {
        self.scope.locals.clear();
        self.shown.clear();
        self.is_doubtful = false;
    }

    /// Appends what the operations print.
    pub(super) fn render(&mut self, ops: &[Instruction], out: &mut String) -> Result<(), RenderFault> {
        self.run(ops, out).map(|_| ())
    }

    fn run(&mut self, ops: &[Instruction], out: &mut String) -> Result<Flow, RenderFault> {
        for op in ops {
            self.take(1)?;
            let flow = self.step(op, out)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn step(&mut self, op: &Instruction, out: &mut String) -> Result<Flow, RenderFault> {
        let before = out.len();
        match op {
            Instruction::Text(text) => out.push_str(text),
            Instruction::Output { chain, escape, breaks, shows } => {
                if let Some(shown) = shows
                    && !self.shown.contains(shown)
                {
                    self.shown.push(*shown);
                }
                let value = chain.evaluate(&self.scope)?;
                weigh(value.as_view(), &self.scope.budget)?;
                print(value.as_view(), *escape, *breaks, out);
                drop(value);
                if *escape == Escape::Close {
                    self.close(before, out)?;
                }
            }
            Instruction::Click { link, url } => {
                self.take(LINK_STEPS + text_steps(url.len()))?;
                escape::html(&self.scope.links.click(*link, url), out);
            }
            Instruction::Link { link, target } => self.link(*link, target, out)?,
            Instruction::Address { kind, target } => {
                let mut written = String::new();
                self.run(target, &mut written)?;
                self.take(text_steps(written.len()))?;
                let value = htmlize::unescape_attribute(&written);
                escape::html(kind.checked(&value), out);
            }
            Instruction::OpenPixel => escape::html(&self.scope.links.open_pixel(), out),
            Instruction::Unsubscribe(escape) => escape.push(self.scope.unsubscribe(), out),
            Instruction::UnsubscribeWord => out.push_str(footer::unsubscribe_word(self.scope.locale())),
            Instruction::UnlessShown { field, body } => {
                let is_shown = self.shown.contains(field) && !self.is_doubtful;
                return if is_shown { Ok(Flow::Next) } else { self.run(body, out) };
            }
            Instruction::Choose { branches, otherwise } => {
                for (test, body) in branches {
                    if self.holds(test)? {
                        return self.run(body, out);
                    }
                }
                return self.run(otherwise, out);
            }
            Instruction::Case { value, branches, otherwise } => {
                let chosen = self.case(value, branches)?;
                return self.run(chosen.unwrap_or(otherwise), out);
            }
            Instruction::For(each) => return self.each(each, out),
            Instruction::Assign { name, chain } => {
                let value = chain.evaluate(&self.scope)?;
                let bytes = weigh(value.as_view(), &self.scope.budget)?;
                self.scope.budget.hold(bytes)?;
                let value = value.into_owned();
                self.scope.locals.insert(name.clone(), value);
                return Ok(Flow::Next);
            }
            Instruction::Capture { name, body } => {
                let mut captured = String::new();
                // What is captured may never be printed.
                let shown = self.shown.len();
                let flow = self.run(body, &mut captured)?;
                self.shown.truncate(shown);
                self.scope.locals.insert(name.clone(), Value::scalar(captured));
                return Ok(flow);
            }
            Instruction::Break => return Ok(Flow::Break),
            Instruction::Continue => return Ok(Flow::Continue),
        }
        // Blocks have charged for what is inside them.
        let written = out.len().saturating_sub(before);
        self.scope.budget.hold(written)?;
        self.take(text_steps(written))?;
        Ok(Flow::Next)
    }

    /// Checks a value that was printed as HTML from there on, and closes what it leaves open.
    fn close(&mut self, from: usize, out: &mut String) -> Result<(), RenderFault> {
        let styles = self.styles.as_mut().map(|styles| std::mem::take(styles.to_mut()));
        let closed = html::close(out.get(from..).unwrap_or_default(), styles, &self.scope.budget)?;
        out.push_str(&closed.end_tags);
        self.is_doubtful |= closed.is_doubtful;
        self.styles = closed.styles.map(Cow::Owned);
        Ok(())
    }

    /// A link whose target is rendered. Web addresses are tracked; addresses of other kinds are checked.
    fn link(&mut self, link: u16, target: &[Instruction], out: &mut String) -> Result<(), RenderFault> {
        let mut written = String::new();
        self.run(target, &mut written)?;
        self.take(LINK_STEPS + text_steps(written.len()))?;
        let url = htmlize::unescape_attribute(&written);
        let url = url.trim();
        if !escape::is_web_address(url) {
            escape::html(AddressKind::Link.checked(url), out);
        } else if url == self.scope.unsubscribe() || url == self.scope.preferences() {
            escape::html(url, out);
        } else {
            escape::html(&self.scope.links.click(link, url), out);
        }
        Ok(())
    }

    fn each(&mut self, each: &Loop, out: &mut String) -> Result<Flow, RenderFault> {
        let mut items = self.items(each)?;
        if each.read.reversed {
            items.reverse();
        }
        if items.is_empty() {
            return self.run(&each.otherwise, out);
        }
        let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
        for (index, item) in (0..length).zip(items) {
            self.take(1)?;
            self.scope.frames.push(Frame { variable: KString::from_ref(&each.read.variable), item, index, length });
            let flow = self.run(&each.body, out);
            self.scope.frames.pop();
            if flow? == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }

    fn items(&self, each: &Loop) -> Result<Vec<Value>, RenderFault> {
        let whole = |wanted: &Option<Operand>| {
            let Some(wanted) = wanted else { return Ok(None) };
            let wanted = self.scope.value(wanted)?;
            let number = wanted.as_scalar().and_then(|scalar| scalar.to_integer());
            Ok::<_, RenderFault>(number.map(|number| usize::try_from(number).unwrap_or(0)))
        };
        let (offset, limit) = (whole(&each.read.offset)?.unwrap_or(0), whole(&each.read.limit)?.unwrap_or(usize::MAX));
        Ok(match &each.read.over {
            Over::Range(from, to) => {
                self.take(u64::try_from(to.saturating_sub(*from)).unwrap_or(0))?;
                (*from..=*to).skip(offset).take(limit).map(Value::scalar).collect()
            }
            Over::Value(value) => {
                let value = self.scope.value(value)?;
                // The items are copied.
                weigh(value.as_view(), &self.scope.budget)?;
                if let Some(array) = value.as_array() {
                    array.values().skip(offset).take(limit).map(ValueView::to_value).collect()
                } else if let Some(object) = value.as_object() {
                    let pair = |(key, value): (liquid::model::KStringCow<'_>, &dyn ValueView)| {
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

    /// The branch of the first alternative that equals the value, which is evaluated once.
    fn case<'o>(
        &self,
        value: &Operand,
        branches: &'o [(Vec<Operand>, Vec<Instruction>)],
    ) -> Result<Option<&'o Vec<Instruction>>, RenderFault> {
        let value = self.scope.value(value)?;
        for (alternatives, body) in branches {
            for alternative in alternatives {
                let alternative = self.scope.value(alternative)?;
                self.charge_comparison(value.as_view(), alternative.as_view())?;
                if ValueViewCmp::new(alternative.as_view()) == ValueViewCmp::new(value.as_view()) {
                    return Ok(Some(body));
                }
            }
        }
        Ok(None)
    }

    /// Comparing visits two lists or two objects at most as far as the shorter goes; anything else is one look, and two texts
    /// are read to the end of the shorter.
    fn charge_comparison(&self, left: &dyn ValueView, right: &dyn ValueView) -> Result<(), RenderFault> {
        let is_nested = |value: &dyn ValueView| value.as_array().is_some() || value.as_object().is_some();
        match (is_nested(left), is_nested(right)) {
            (true, true) => {
                weigh(left, &self.scope.budget)?;
                weigh(right, &self.scope.budget)?;
            }
            (false, false) => self.take(text_steps(left.to_kstr().len().min(right.to_kstr().len())))?,
            _ => self.take(1)?,
        }
        Ok(())
    }

    fn holds(&self, test: &BranchTest) -> Result<bool, RenderFault> {
        for all in &test.any_of {
            if self.all_hold(all)? {
                return Ok(!test.negated);
            }
        }
        Ok(test.negated)
    }

    fn all_hold(&self, tests: &[ConditionTest]) -> Result<bool, RenderFault> {
        for test in tests {
            self.take(1)?;
            if !self.compares(test)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn compares(&self, compare: &ConditionTest) -> Result<bool, RenderFault> {
        let left = self.scope.value(&compare.left)?;
        let Some((comparison, right)) = &compare.right else { return Ok(left.query_state(State::Truthy)) };
        let right = self.scope.value(right)?;
        if *comparison == Comparison::Contains {
            weigh(left.as_view(), &self.scope.budget)?;
            weigh(right.as_view(), &self.scope.budget)?;
            return Ok(contains(left.as_view(), right.as_view()));
        }
        self.charge_comparison(left.as_view(), right.as_view())?;
        let (a, b) = (ValueViewCmp::new(left.as_view()), ValueViewCmp::new(right.as_view()));
        Ok(match comparison {
            Comparison::Equal | Comparison::Contains => a == b,
            Comparison::NotEqual => a != b,
            Comparison::Less => a < b,
            Comparison::LessOrEqual => a <= b,
            Comparison::Greater => a > b,
            Comparison::GreaterOrEqual => a >= b,
        })
    }

    fn take(&self, steps: u64) -> Result<(), RenderFault> {
        Ok(self.scope.budget.take_steps(steps)?)
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> runtime::Used {
        self.scope.budget.used()
    }
}

fn print(value: &dyn ValueView, escape: Escape, breaks: bool, out: &mut String) {
    let start = out.len();
    escape.push(&value.to_kstr(), out);
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
