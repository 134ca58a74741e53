library ieee;
use ieee.std_logic_1164.all;
use ieee.numeric_std.all;

-- A queue of DEPTH samples: a pipeline register when DEPTH is 1. Empty after a reset, latency 1.
-- It accepts a sample in the cycle in which it hands one on, so a full one does not stop the stream.
-- ROW: the place in a row of registers that hand on in every cycle, without an enable: 1 the first, 2 a middle one, 3 the last. The
-- last is a queue that says no early enough to hold all that are under way, so DEPTH is 2 more than there are registers before it.
entity lutetia_register is
    generic (WIDTH : positive := 1; DEPTH : positive := 1; ROW : natural := 0);
    port (
        clk, rst : in std_logic;
        in_data : in std_logic_vector(WIDTH - 1 downto 0);
        in_valid : in std_logic;
        in_ready : out std_logic;
        out_data : out std_logic_vector(WIDTH - 1 downto 0);
        out_valid : out std_logic;
        out_ready : in std_logic
    );
end entity;

architecture behaviour of lutetia_register is
begin
    moving : if ROW = 1 or ROW = 2 generate
        signal data : std_logic_vector(WIDTH - 1 downto 0);
        signal full : std_logic := '0';
    begin
        in_ready <= out_ready;
        out_valid <= full;
        out_data <= data;
        process (clk) begin
            if rising_edge(clk) then
                data <= in_data;
                full <= in_valid and not rst;
                if ROW = 1 and out_ready = '0' then
                    full <= '0';
                end if;
            end if;
        end process;
    end generate;
    any_queue : if ROW = 0 or ROW = 3 generate
        type queue is array (0 to DEPTH - 1) of std_logic_vector(WIDTH - 1 downto 0);
        signal data : queue;
        signal first, last : natural range 0 to DEPTH - 1 := 0;
        signal held : natural range 0 to DEPTH := 0;
        signal push, pop, ready, some : std_logic;
    begin
        ready <= '1' when (ROW = 3 and held < 2) or (ROW = 0 and held /= DEPTH) else out_ready when ROW = 0 else '0';
        some <= '1' when held /= 0 else '0';
        push <= in_valid when ROW = 3 else in_valid and ready;
        pop <= some and out_ready;
        in_ready <= ready;
        out_valid <= some;
        out_data <= data(first);
        process (clk) begin
            if rising_edge(clk) then
                if rst = '1' then
                    first <= 0;
                    last <= 0;
                    held <= 0;
                else
                    if push = '1' then
                        data(last) <= in_data;
                        last <= (last + 1) mod DEPTH;
                    end if;
                    if pop = '1' then
                        first <= (first + 1) mod DEPTH;
                    end if;
                    if push = '1' and pop = '0' then
                        held <= held + 1;
                    elsif pop = '1' and push = '0' then
                        held <= held - 1;
                    end if;
                end if;
            end if;
        end process;
    end generate;
end architecture;
