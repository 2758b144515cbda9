import pytest

from loadchaos.analysis.classify.classifier import classify_text, load
from loadchaos.analysis.classify.native_stack import NativeStack, symbol_name

START = "INFO 11-20 15:53:40 [api_server.py:1] Starting\n"
FAULT = "Fatal Python error: Segmentation fault\n"


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        (
            "frame #3: at::native::index_put_kernel(at::TensorIterator&) + 0x1f (0x7f2eb8d6b5cf in /x/libtorch_cuda.so)",
            "libtorch_cuda.so at::native::index_put_kernel",
        ),
        (
            "#3  0x00007f5b2b1c2d3a in at::native::(anonymous namespace)::gather<float> () from /usr/lib/libtorch_cuda.so",
            "libtorch_cuda.so at::native::(anonymous namespace)::gather",
        ),
        (
            "#2  turbomind::LlamaBatch<__half>::Initialize (this=0x7f) at /w/src/turbomind/LlamaBatch.cc:316",
            "LlamaBatch.cc:316 turbomind::LlamaBatch::Initialize",
        ),
        ("#3 0x7f2c in at::native::put(at::Tensor&) /pytorch/aten/put.cpp:123:4", "put.cpp:123 at::native::put"),
        ("    #4 0x55d0 in step (/opt/lib/libengine.so+0x4f2) (BuildId: 1)", "libengine.so step"),
        ("/opt/libtorch_cpu.so(_ZN2at6native9index_putERNS_6TensorE+0x8f)[0x7f1b]", "libtorch_cpu.so at::native::index_put"),
        ("    @     0x7f1b1c2d3a1b turbomind::LlamaBatch<>::Forward()", "turbomind::LlamaBatch::Forward"),
        ("PC: @     0x7f17f832d44a  (unknown)  addProxyOpIfNeeded()", "addProxyOpIfNeeded"),
        (" 7 0x0000000000067b0a ncclGroupEnd()  /usr/lib/libnccl.so.2:0", "libnccl.so.2 ncclGroupEnd"),
    ],
)  # fmt: skip
def test_native_stack_reads_every_format(line: str, frame: str) -> None:
    (failure,) = classify_text(START + FAULT + line + "\n")
    assert failure.title == f"Segmentation fault in {frame.replace(':316', '').replace(':123', '')}"
    assert failure.frame == frame


@pytest.mark.parametrize(
    "line",
    [
        "#3  0x00007f5b9f0407f3 in abort () from /lib/x86_64-linux-gnu/libc.so.6",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f2f0a6b25e6 in /x/torch/lib/libc10.so)",
        "    @     0x7f1c2c042520 (unknown)",
        " 2 0x0000000000004493 ???()  /usr/lib/x86_64-linux-gnu/libffi.so.8:0",
        '  File "<unknown>", line 0, in _PyEval_EvalFrameDefault',
        "#1 fix the readme",
    ],
)
def test_native_stack_skips_frames_that_pass_faults_on(line: str) -> None:
    (failure,) = classify_text(START + FAULT + line + "\n")
    assert (failure.title, failure.frame) == ("Segmentation fault", "")


def test_native_stack_reads_the_crashed_thread_only() -> None:
    stack = NativeStack()
    for n, line in enumerate(
        [
            "Thread 0x00007fd0 (most recent call first):",
            '  File "/x/innocent.py", line 1 in waits',
            "Current thread 0x00007fcf (most recent call first):",
            '  File "/x/guilty.py", line 2 in crashes',
        ]
    ):
        assert stack.feed(line, n)
    blamed = stack.guilty_frame(load().skip)
    assert blamed is not None
    assert blamed.where == "guilty.py crashes"


def test_native_stack_ends_at_a_traceback() -> None:
    trace = 'Traceback (most recent call last):\n  File "/x/y.py", line 3, in f\n    g()\nFooError: bar\n'
    found = classify_text(
        START + FAULT + "ERROR 11-20 15:53:40 [core.py:1100] EngineCore encountered a fatal error.\n" + trace
    )
    assert [(f.id, f.frame) for f in found] == [("segfault", "")]


def test_native_stack_of_an_asynchronous_fault_has_no_guilty_frame() -> None:
    line = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    stack = "frame #3: at::native::put() + 0x1f (0x7f in /x/libtorch_cuda.so)\n"
    (failure,) = classify_text(START + line + stack)
    assert (failure.title, failure.frame) == ("CUDA illegal memory access", "")
    assert failure.frames == ("libtorch_cuda.so at::native::put",)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("at::native::f<float>(at::Tensor const&) const", "at::native::f"),
        ("_ZN2at6native1fERKNS_6TensorE", "at::native::f"),
        ("_ZNK3c104Type5annotEv", "c10::Type::annot"),
        ("void vllm::paged_attention_v1_kernel<__half, 128>(float*, int)", "vllm::paged_attention_v1_kernel"),
        ("c10::Dispatcher::callBoxed(c10::OperatorHandle const&) const [clone .isra.0]", "c10::Dispatcher::callBoxed"),
        ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync"),
    ],
)
def test_symbol_name_is_cut_to_the_function(symbol: str, name: str) -> None:
    assert symbol_name(symbol) == name
